"""A learner's function on real ranks: what is checked there, and what it may send."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import minidist
from course.ask.forbidden import nothing_but
from course.ask.verdict import Grader, Wrong, draws, many, on_ranks, without_lesson
from minidist.collectives.runtime.executor import Sent
from minidist.comm.counted import Counted
from minidist.launch.process import PRELOAD

PRELOAD.append(__name__)  # ranks are forked from a process that has it

WORLDS, OTHERS = (3, 5), (2, 4)  # always, and of which one is drawn
REAL = f"on {WORLDS[0]}, {WORLDS[1]} and {{drawn}} real processes"  # as `graded` fills it in
AT_THE_END = " (The barrier is this grader's, when your function has returned.)"


class Traffic(NamedTuple):
    """Bytes and messages that one rank has sent."""

    nbytes: int
    messages: int

    @classmethod
    def of(cls, source: Sequence[Sent] | Counted) -> Traffic:
        """Traffic of the messages that `minidist.record` has noted, or of all calls of a comm."""
        if isinstance(source, Counted):
            return cls(source.bytes_sent, source.messages_sent)
        return cls(sum(message.nbytes for message in source), len(source))


@dataclass(frozen=True)
class Cost:
    """Traffic of a rank, and how much it takes."""

    sent: Traffic  # by this rank
    least: int  # bytes that all ranks together must send
    messages: int  # that each rank may send
    so_far: str  # the part that is right: "the weights are right"
    advice: str = ""  # a hint where it is too much
    # To add where it is too little, which means that it was not counted.
    too_little: str = "Call minidist's collectives, by their default algorithm, and nothing else."
    shared: bool = True  # true if all ranks must send about as much

    def check(self, sent: Sequence[Traffic], where: str = "") -> None:
        """Raise Wrong where the ranks send more than they need to, or less than it takes.

        `where` says in which case that is: "with 4 tokens".
        """
        total, ranks = sum(each.nbytes for each in sent), len(sent)
        busiest = max(range(ranks), key=lambda rank: sent[rank].nbytes)
        most, share = sent[busiest].nbytes, self.least / ranks
        talks = max(range(ranks), key=lambda rank: sent[rank].messages)
        count = sent[talks].messages
        if total < 0.99 * self.least:
            counted = f"only {total:,} of the {self.least:,} bytes that it takes were counted"
            wrong = f"{counted}. {self.too_little}"
        elif total > 1.01 * self.least:
            times = f"{total / self.least:.2g} times the {self.least:,} that are enough"
            wrong = f"together they send {total:,} bytes, {times}. {self.advice}"
        elif self.shared and most > 1.3 * share:
            enough = f"{share:,.0f} for each rank are enough"
            wrong = f"rank {busiest} sends {most:,} bytes, and {enough}. {self.advice}"
        elif count > self.messages:
            enough = f"{self.messages} are enough: make fewer calls. {self.advice}"
            wrong = f"rank {talks} sends {count} messages where {enough}"
        else:
            return
        case = f", {where}, " if where else " "
        raise Wrong(f"On {ranks} real processes{case}{self.so_far}, but {wrong}".rstrip())


Case = tuple[Any, ...]
Check = object  # a `Cost`, or a sentence on what is wrong; anything that is false is right
Checks = Callable[..., Iterable[Check]]


def graded(
    solved: str,
    cases: Callable[[], Sequence[Case]] = lambda: [()],
    told: Callable[..., str] = lambda: "",
    **how: Any,
) -> Callable[[Checks], Grader[[Callable[..., object]]]]:
    """Make a grader of work(function, *case), which yields checks on each rank: see `on_worlds`.

    Args:
        solved: said when all is right; "{drawn}" is the number of ranks that was drawn.
        cases: the arguments of each case, drawn anew at each grading.
        told: makes of them what a verdict says of a case: "with 4 tokens".
        how: as `on_worlds` takes it.
    """

    def grader(work: Checks) -> Grader[[Callable[..., object]]]:
        @wraps(work)
        def grade(function: Callable[..., object]) -> str:
            each = {told(*case): case for case in cases()}
            on_worlds(partial(work, function), each, **how)
            return solved.replace("{drawn}", f"{drawn()}")

        return Grader(grade)

    return grader


def on_worlds(
    work: Checks,
    cases: Mapping[str, Case],
    *,
    instead: str = "",
    hints: Mapping[str, str] | None = None,
    worlds: Sequence[int] = (),
) -> None:
    """On 3 real ranks, on 5 and on a number that is drawn, run each case; Wrong if one is wrong.

    Args:
        work: asks the learner's function, and then yields its checks, equally many on all ranks.
        cases: what a verdict says of a case → what `work` is called with, on all ranks.
        instead: what the function is to call in place of torch's collectives and messages, which
            are refused, as is all that goes over the network beside; if "", nothing is refused.
        hints: as `on_ranks` takes them.
        worlds: other numbers of ranks.
    """
    hints = {"barrier": AT_THE_END} | dict(hints or {})
    for ranks in worlds or (*WORLDS, drawn()):
        try:
            of_ranks = on_ranks(_each, ranks, work, cases, instead, hints=hints)
            for where, *checks in zip(cases, *of_ranks, strict=True):
                for row in zip(*checks, strict=False):
                    _judge(row, where)
        except Wrong as wrong:
            if worlds or ranks in WORLDS:
                raise
            seed = os.environ.get("COURSE_SEED") or "none"
            raise Wrong(f"{wrong} (drawn: {many(ranks, 'rank')}; COURSE_SEED={seed})") from wrong


def drawn() -> int:
    """The number of ranks that a seed draws, one that is not among those always asked."""
    return draws(97).choice(OTHERS)


def _each(work: Checks, cases: Mapping[str, Case], instead: str) -> list[list[Check]]:
    found = []
    minidist.barrier()  # connects, which is no case's traffic
    with without_lesson(), nothing_but(instead) if instead else nullcontext(str) as beside:
        for where, case in cases.items():
            with _told(where):
                checks = [*_to_first_wrong(work(*case))]
            more = beside()
            found.append([*checks, more and f"the results are right, and {more}"])
    return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Inside `with`, whatever is raised says in which case."""
    try:
        yield
    except Wrong as wrong:
        raise Wrong(f"{where}, {wrong}" if where else str(wrong)) from wrong
    except Exception as error:
        if where:
            error.add_note(where)
        raise


def _to_first_wrong(checks: Iterable[Check]) -> Iterator[Check]:
    for check in checks:
        yield check
        if isinstance(check, str) and check:
            return


def _judge(row: Sequence[Check], where: str) -> None:
    """Raise Wrong for one check, as each rank has it."""
    for rank, check in enumerate(row):
        if isinstance(check, str) and check:
            case = f"{where}, " if where else ""
            raise Wrong(f"on rank {rank} of {len(row)}, {case}{check}")
    costs = [check for check in row if isinstance(check, Cost)]
    if costs:
        costs[0].check([cost.sent for cost in costs], where)


def beside(log: Sequence[Sent]) -> str:
    """A sentence on messages that `minidist.record` has noted, which a comm's are not; or ""."""
    more = Traffic.of(log).nbytes
    return f"you send {more:,} bytes beside comm's calls; make those alone." if more else ""


def alike(tensor: torch.Tensor) -> bool:
    """True if the tensor is equal on all ranks; all must call this."""
    minidist.barrier()  # a rank that has made fewer calls meets the others here, and is told
    most, least = tensor.clone(), tensor.clone()
    minidist.all_reduce(most, minidist.ReduceOp.MAX)
    minidist.all_reduce(least, minidist.ReduceOp.MIN)
    return most.equal(least)


def exchange(tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
    """Send a 1-D tensor to rank `to` and return the one that rank `source` sends us."""
    length = torch.empty(1, dtype=torch.int64)
    _both(torch.tensor([len(tensor)]), to, length, source)
    received = tensor.new_empty(int(length))
    _both(tensor.contiguous(), to, received, source)
    return received


def _both(out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
    ops = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


class Storages:
    """Tensors of which one asks later whether their memory is still there."""

    def __init__(self) -> None:
        self._seen: list[StorageWeakRef] = []

    def watch(self, tensor: torch.Tensor) -> None:
        """Remember a tensor, and do not keep it."""
        self._seen.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def held(self) -> int:
        """Number of storages that are alive and not resized to nothing."""
        there = [each for each in self._seen if not each.expired()]  # type: ignore[no-untyped-call]
        alive = [torch.UntypedStorage._new_with_weak_ptr(each.cdata) for each in there]
        return sum(storage is not None and storage.nbytes() > 0 for storage in alive)
