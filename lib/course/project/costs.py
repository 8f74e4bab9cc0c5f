"""The cost of a training step in calls, bytes and memory, and its limits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import nn

from course.ask import journal, wire
from course.ask.verdict import LESSON, Wrong, without_lesson
from course.project.held import Held, Lines, come_from, lines_of, measured
from course.project.milestones import MILESTONES, Milestone
from course.project.models import Twice, mlp
from course.project.submission import graded, source
from course.project.trained import Trained
from course.timing.travels import Awaited
from minidist.comm.comm import Around, Comm, Pending, Start
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours

RANKS = 3  # on two, a gather of everything sends no more than an all-reduce
WIDTH, LAYERS = 192, 8
CAP = WIDTH * WIDTH * 8 / 2**20  # MiB: a bucket for each layer
MODEL = LAYERS * WIDTH * (WIDTH + 1) * 8  # bytes
IN = f"with {LAYERS} layers of {WIDTH} inputs and outputs in float64, on {RANKS} ranks, "
STEPS = 3

Pick = Callable[[int, int], int]


class Cost(NamedTuple):
    """Cost of a step on one rank."""

    calls: int
    messages: int
    nbytes: int  # that they carry
    peak: int  # the most bytes of tensors that it holds, parameters and optimizer state among them
    kept: int  # bytes by which some steps let its process grow; 0 where that cannot be known
    overlaps: int  # times that a call is on its way when a layer computes or another call is made
    early: int  # calls that are made before backward ends
    passed: int  # gathers that are waited for before one that was called earlier
    twice: int  # calls of a step of the model in which a unit runs twice; of FSDP
    wire: int  # bytes that its process puts on the network, by whatever call
    sent: str = ""  # a sentence on the learner's lines that make the calls
    late: str = ""  # and on those that make them after backward
    beside: str = ""  # and on those that send messages beside them


class Overlapping(Around):
    """A comm that counts how often a call is on its way when something else happens."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.under_way: dict[int, str] = {}  # a call's number → its name
        self.calls = self.overlaps = self.passed = 0

    def look(self, *_: object) -> None:
        """Count the kinds of calls that are on their way."""
        self.overlaps += len(set(self.under_way.values()))

    def watch(self, _: nn.Module, __: object, output: torch.Tensor) -> None:
        """A forward hook: look after a layer's forward, and before its backward."""
        self.look()
        output.register_hook(self.look)  # type: ignore[no-untyped-call]

    def around(self, name: str, full: torch.Tensor, call: Start, async_op: bool) -> Pending:
        """Make the call, and remember it until its wait."""
        journal.write(name, nbytes=full.nbytes)
        self.look()
        work = call(async_op)
        if work is None:
            return None
        self.calls += 1
        self.under_way[self.calls] = name
        return Awaited(work, partial(self.forgotten, self.calls))

    @contextmanager
    def forgotten(self, call: int) -> Iterator[None]:
        """Count the call as on its way until somebody has waited for it."""
        yield
        name = self.under_way.pop(call, "")
        others = (each for each, its in self.under_way.items() if its == name == "all_gather")
        self.passed += min(others, default=call) < call


def build() -> nn.Module:
    """Equal layers, each a unit."""
    return nn.Sequential(*(mlp(WIDTH, WIDTH) for _ in range(LAYERS)))


def step(trained: Trained, inputs: torch.Tensor) -> None:
    """Train one step."""
    trained.step(trained.model(inputs).square().mean())


class Traffic(NamedTuple):
    """The third step of training on a rank."""

    counted: Counted
    seen: Overlapping
    early: int  # calls before backward ends
    wire: int  # bytes that the process has put on the network, by whatever call
    sent: tuple[str, str, str]  # sentences on lines that make all calls, late ones, or send beside


def traffic(milestone: Milestone, kind: type, net: nn.Module, rows: torch.Tensor) -> Traffic:
    """What travels in the third step, and when."""
    overlapping = Overlapping(Ours(algorithm="ring"))
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(overlapping.watch)
    comm = Counted(overlapping)
    trained, early = milestone.train(kind, net, comm, CAP), 0

    def synchronize() -> None:  # once backward has ended
        nonlocal early
        early = len(comm.calls)
        trained.synchronize()

    for _ in range(STEPS):
        comm.clear()
        journal.begin_case("a step of equal layers")
        overlapping.overlaps = overlapping.passed = 0
        before = wire.sent()
        step(trained._replace(synchronize=synchronize), rows)
    sent = journal.calls(), journal.calls(early), journal.calls(beside=True)
    return Traffic(comm, overlapping, early, wire.sent() - before, sent)


def memory(milestone: Milestone, kind: type, rows: torch.Tensor, pick: Pick = min) -> Held:
    """What a rank holds in a step, picked from two measurements: a busy machine frees late."""
    make = prepared(milestone, kind, rows)
    return Held(*map(pick, measured(make), measured(make)))


def lines(kind: type, milestone: Milestone) -> Lines:
    """On a rank: the bytes of what a step holds by the learner's lines."""
    with without_lesson():
        return lines_of(prepared(milestone, kind, torch.ones(1, WIDTH).double()))


def prepared(
    milestone: Milestone, kind: type, rows: torch.Tensor
) -> Callable[[], Callable[[], None]]:
    """What prepares a step whose memory is measured."""
    comm = Ours(algorithm="shared_memory")  # another would be chosen by its speed, not its memory
    comm.all_reduce(torch.ones(LAYERS * WIDTH * (WIDTH + 1)))  # its buffers are not the step's

    def make() -> Callable[[], None]:
        return partial(step, milestone.train(kind, build(), comm, CAP), rows)

    return make


def cost(kind: type, milestone: Milestone, pick: Pick = min) -> Cost:
    """On a rank: what a step of a milestone's class sends and holds."""
    one = torch.ones(1, WIDTH).double()
    with without_lesson():
        counted, seen, early, on_wire, (sent, late, beside) = traffic(milestone, kind, build(), one)
        (most, kept), twice = memory(milestone, kind, one, pick), 0
        if milestone.file == "fsdp":
            again = traffic(milestone, kind, Twice(5), torch.ones(1, 5).double())
            twice = len(again.counted.calls)
    return Cost(
        calls=len(counted.calls),
        messages=counted.messages_sent,
        nbytes=counted.bytes_sent,
        peak=most,
        kept=kept,
        overlaps=seen.overlaps,
        early=early,
        passed=seen.passed,
        twice=twice,
        wire=on_wire,
        sent=sent,
        late=late,
        beside=beside,
    )


@cache
def reference(name: str) -> Cost:
    """That of `from_scratch`."""
    milestone = MILESTONES[name]
    kind = source(LESSON, milestone.file, *milestone.names)
    return of_all(graded(kind, RANKS, cost, milestone, max))


def of_all(costs: Sequence[Cost]) -> Cost:
    """Rank 0's, with the bytes of all ranks."""
    nbytes, on_wire = sum(each.nbytes for each in costs), sum(each.wire for each in costs)
    return Cost(*costs[0])._replace(nbytes=nbytes, wire=on_wire)


# ---- what is too much ----

SPARE = {
    "peak": 1.1,
    "kept": 1.25,
    "wire": wire.SPARE[0],
}  # buckets are cut differently; pages are shared with others
TOO_MUCH = {  # more than from_scratch's
    "nbytes": "all ranks together send {own:,} bytes in a step, {many:.1f} (N - 1) times the "
    "model; {right:,} are enough, {moved} (N - 1) times.{sent}",
    "calls": "a step makes {own:,} calls, where {right:,} would do.{sent}",
    "wire": "all ranks together put {own:,} bytes on the network in a step, headers included; "
    "{right:,} are enough. Send nothing beside the calls of `comm`.{beside}",
    "peak": "rank 0 holds {own:,} bytes at the peak of a step, {times:.1f} times the model; "
    "{right:,} are enough, {enough:.1f} times. What is held longer than it is needed?{line}",
    "kept": "some steps let the process of rank 0 grow by {own:,} bytes, {times:.1f} times the "
    "model; {right:,} are enough. What is kept, and not in a tensor?{line}",
    "passed": "{own} times in a step a gather is waited for that was called after another: gather "
    "one's own unit before the next.{sent}",
    "twice": "a step in which a unit runs twice takes {own} calls; {right} are enough. Gather a "
    "unit only if its weights are not there.{sent}",
}
TOO_LITTLE = {  # less than the part of from_scratch's that is enough
    "overlaps": "{own} times in a step a call is on its way while a layer computes or another call "
    "is made; it could be {right} times. Make each call as early as you can, with async_op=True, "
    "and wait as late as you can.{sent}",
    "early": "{own} of {calls} calls are made before backward ends; it could be {right}. Start a "
    "bucket in the hook of the gradient that fills it; here the others wait for backward's "
    "end.{late}",
    "nbytes": "{own:,} of the {right:,} bytes that it takes went through `comm`. Make its calls, "
    "and no others.",
}


def check_cost(costs: Sequence[Cost], name: str, ask: Callable[[], Lines]) -> None:
    """Raise Wrong if a step costs more than that of `from_scratch`, or hides less of it.

    `ask` finds the lines that made what rank 0 holds: only if it is too much, as it takes a while.
    """
    milestone, own, right = MILESTONES[name], of_all(costs)._asdict(), reference(name)._asdict()
    words = {key: own[key] for key in ("calls", "sent", "late", "beside")} | {
        "moved": milestone.moved
    }

    def wrong(measure: str, said: str) -> Wrong:
        mine, least = own[measure], right[measure]
        sizes = {"times": mine / MODEL, "many": mine / MODEL / (RANKS - 1), "enough": least / MODEL}
        held = {"peak": 0, "kept": 1}.get(measure)
        line = "" if held is None else come_from(ask()[held], mine - least)
        text = said.format(own=mine, right=least, line=line, **words, **sizes)
        return Wrong(f"{IN}the results are right, and {text}")

    for measure, said in TOO_MUCH.items():
        matters = milestone.lean or measure not in ("peak", "kept")
        if matters and own[measure] > SPARE.get(measure, 1) * right[measure]:
            raise wrong(measure, said)
    for measure, said in TOO_LITTLE.items():
        if own[measure] < (1 if measure == "nbytes" else milestone.overlap) * right[measure]:
            raise wrong(measure, said)
