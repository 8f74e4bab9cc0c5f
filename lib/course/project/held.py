"""A rank's memory in a step: the most bytes of tensors, and what its process keeps elsewhere.

For each milestone after FSDP there is a step of training large enough to see what is held: all
weights, all experts, all keys, or the activations of all micro-batches. What it computes is counted
in one of them, or in one that has more to compute.
"""

import ctypes
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, mse_loss
from torch.optim import SGD

from course.ask import journal
from course.ask.verdict import LESSON, Wrong, learners, without_lesson
from course.project.computed import Computed, Made, compare_computed, counted
from course.project.models import draw, mlp
from course.project.scenarios import Tally, step_all
from course.project.submission import found
from minidist.comm.ours import Ours
from minidist.memory.meter import Meter
from minidist.schedule.pipeline import one_f_one_b, sequence

RANKS, STEPS = 5, 3  # as many as make a block of all keys stand out
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
LARGEST = 2**20  # numbers in what the steps below send
MORE = 1.25  # times what from_scratch holds: a micro-batch more, or a copy
SPARE = 2**18  # bytes that a process may grow by beside that: pages are shared with others
AGAIN = 2  # more looks at a process that seems to have grown
FRAMES = 16  # innermost calls in which a line is looked for
FIXED = "the same sizes in every grading"

Step = Callable[[], object]


class Held(NamedTuple):
    """The bytes of a step on one rank."""

    peak: int  # of tensors, parameters and optimizer state among them
    kept: int  # by which some steps let the process grow; 0 where that cannot be known


def measured(make: Callable[[], Step]) -> Held:
    """What a step holds that `make` prepares.

    Of several looks the least, as threads may free late; what is kept is there in all of them.
    Only the process knows of arrays and files.
    """
    meter, before = Meter(), of_the_process()
    step = make()
    for _ in range(STEPS):
        step()
    peaks, grown = [], [of_the_process() - before]
    for _ in range(STEPS):
        peaks.append(meter.curve(step).peak)
        grown.append(of_the_process() - before)
    return Held(min(peaks), min(grown))


class Lines(NamedTuple):
    """Bytes by the learner's lines that made them."""

    tensors: Counter[str]  # when they were most
    others: Counter[str]  # Python's objects and numpy's arrays, after some steps


def lines_of(make: Callable[[], Step]) -> Lines:
    """Where what some steps hold was made; this takes longer than to measure it."""
    with Made() as made:
        torch.ones(1)  # imports what such a mode needs, which is not the learner's
        tracemalloc.start(FRAMES)
        step = make()
        for _ in range(STEPS):
            step()
    others = Counter[str]()
    for each in tracemalloc.take_snapshot().statistics("traceback"):
        frames = (learners(at.filename, at.lineno) for at in reversed(each.traceback))
        others[next(filter(None, frames), "")] += each.size
    tracemalloc.stop()
    return Lines(made.most, others)


def of_the_process() -> int:
    """The bytes that are this process's alone; 0 without glibc, which can give back what is free.

    A block of 32 KiB or more then is taken from the system, and given back when it is freed.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return 0
    gc.collect()
    libc.mallopt(M_MMAP_THRESHOLD, 2**15)
    libc.malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


# ---- steps of the milestones after FSDP ----


def pipeline(kind: Any, comm: Tally) -> Step:
    """10 micro-batches of 128 samples of 64 numbers by 1F1B, a stage on each rank."""
    micro, samples, width = 2 * comm.ranks, 128, 64
    works = sequence(one_f_one_b(comm.ranks, micro))
    nothing = torch.full((1, 1), torch.nan).double().expand(micro * samples, width)
    x, y = (
        draw(rank, micro * samples, width) if comm.rank == rank else nothing
        for rank in (0, comm.ranks - 1)
    )
    own = kind(mlp(*[width] * (1 + comm.ranks)), comm.ranks, draw(1, samples, width))

    def step() -> None:
        own.step(works, x, y, mse_loss)
        for parameter in own.parameters():
            parameter.grad = None

    return step


def tensor(file: Any, comm: Tally) -> Step:
    """Attention of width 160 and 640 hidden units, 4 tokens of a split sequence on each rank."""
    head, width, hidden = 32, 32 * comm.ranks, 128 * comm.ranks
    square = [draw(n, width, width) for n in range(4)]
    wide = draw(5, hidden, width), draw(6, width, hidden)
    blocks = nn.Sequential(
        file.SplitBlock(square[:3], partial(file.attend, head), square[3], comm, True),
        file.SplitBlock([wide[0]], gelu, wide[1], comm, True),
    )
    x = draw(7, 4, 1, width).requires_grad_()
    return partial(_backward, blocks, blocks, x)


def context(file: Any, comm: Tally, learns: bool = True, tokens: int = 4, width: int = 256) -> Step:
    """4 heads of width 256, 4 tokens on each rank in zigzag; forward alone unless it `learns`."""
    full = draw(0, 3, 4, tokens * comm.ranks, width)
    own = [file.split(each, True).clone().requires_grad_(learns) for each in full]

    def step() -> None:
        loss = file.attention(*own, True).square().mean()
        if learns:
            torch.autograd.backward(loss)
        for each in own:
            each.grad = None

    return step


def attend(file: Any, comm: Tally) -> Step:
    """4 heads of width 256, 4 tokens on each rank in zigzag, without gradients.

    The peak of backward hides what forward holds.
    """
    return context(file, comm, learns=False)


def long(file: Any, comm: Tally) -> Step:
    """4 heads of width 32, 64 tokens on each rank in zigzag, so that products are most of it."""
    return context(file, comm, tokens=64, width=32)


def expert(kind: Any, comm: Tally) -> Step:
    """10 experts of width 64 with 256 hidden units, 8 tokens on each rank, top-2."""
    torch.manual_seed(3)  # tokens go the same ways with every file
    router, width = nn.Linear(64, 2 * comm.ranks).double(), 64
    experts = nn.ModuleList(mlp(width, 256, width) for _ in range(2 * comm.ranks))
    layer = kind(router, experts, comm, 2, None, comm.exchange)
    return partial(_backward, layer, layer, draw(comm.rank, 8, width).requires_grad_())


def local_sgd(file: Any, comm: Tally) -> Step:
    """A round of two steps of LocalSGD and of DiLoCo, two layers of width 128."""
    steps = []
    for wrap in (file.LocalSGD, file.DiLoCo):
        net = mlp(128, 128, 128)
        optimizer = wrap(SGD(net.parameters(), 0.01), comm, 2)
        steps += 2 * [partial(_backward, net, optimizer, draw(comm.rank, 4, 128))]

    def both() -> None:
        for step in steps:
            step()

    return both


def _backward(model: Any, optimizer: Any, x: torch.Tensor) -> None:
    """A backward pass; then a step, or where there is none the gradients are dropped."""
    torch.autograd.backward(model(x).square().mean())
    x.grad = None
    if hasattr(optimizer, "step"):
        step_all([optimizer])
    else:
        optimizer.zero_grad()


# ---- what is too much ----


def check_held(written: Any, milestone: Any) -> None:
    """On a rank: raise Wrong if a step computes or holds more than that of `from_scratch`."""
    lesson = found(LESSON, milestone.file, *milestone.names)
    if milestone.computes:
        enough = computed(lesson, milestone.computes)
        with without_lesson(), journal.in_case(sizes(milestone.computes), FIXED):
            own = computed(written, milestone.computes)
            compare_computed(own, enough, milestone.part)
            if own.left:
                raise Wrong(
                    f"the results are right, and in {own.left} numbers leave torch for numpy, "
                    "where what is computed cannot be counted: compute with torch."
                )
    for make in milestone.held:
        # the first time something is loaded, and the second begins with what the first frees late
        least = Held(*map(max, of_a_step(lesson, make), of_a_step(lesson, make)))
        with without_lesson(), journal.in_case(sizes(make), FIXED):
            held, lines = of_a_step(written, make), None
            if of_any_rank(any(more_than(held, least))):
                lines = of_a_step(written, make, lines_of)
                if of_any_rank(more_than(held, least)[1] and not known(held, least, lines)):
                    again = [of_a_step(written, make).kept for _ in range(AGAIN)]
                    held = held._replace(kept=min(held.kept, *again))
            compare_held(held, least, milestone.holds, lines)


def of_any_rank(holds: bool) -> bool:
    """True if it holds on a rank: then all of them make the steps again."""
    answer = torch.tensor(holds, dtype=torch.int)
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return bool(answer)


def known(own: Held, least: Held, lines: Lines) -> bool:
    """True if Python knows of what has grown; else it may be what a busy machine frees late."""
    return 2 * sum(nbytes for line, nbytes in lines.others.items() if line) >= own.kept - least.kept


def more_than(own: Held, least: Held) -> tuple[bool, bool]:
    """True where a step holds more than is enough: of tensors, and elsewhere."""
    return own.peak > MORE * least.peak, own.kept > MORE * least.kept + SPARE


def compare_held(own: Held, least: Held, holds: str, lines: Lines | None = None) -> None:
    """Raise Wrong if a step holds more than is enough; `holds` says what should be held."""
    tensors, others = lines or Lines(Counter(), Counter())
    peak, kept = more_than(own, least)
    if peak:
        raise Wrong(
            f"the results are right, and this rank holds {own.peak:,} bytes of tensors at the peak "
            f"of a step; {least.peak:,} are enough."
            f"{come_from(tensors, own.peak - least.peak)} {holds}"
        )
    if kept:
        raise Wrong(
            f"the results are right, and some steps let the process of this rank grow by "
            f"{own.kept:,} bytes; {least.kept:,} are enough. What is kept, and not in a tensor?"
            f"{come_from(others, own.kept - least.kept)} {holds}"
        )


def come_from(lines: Counter[str], excess: int) -> str:
    """A sentence on the line that has made half of what is too much or more; or ""."""
    each = ((nbytes, line) for line, nbytes in lines.items() if line)
    most, line = max(each, default=(0, ""))
    return f" {most:,} of them come from {line}." if most and most >= excess / 2 else ""


def of_a_step(
    written: Any,
    make: Callable[[Any, Tally], Step],
    measure: Callable[[Callable[[], Step]], Any] = measured,
) -> Any:
    """What the reader's code holds in one of the steps above: a `Held`, or `Lines`."""
    comm = Tally(Ours(algorithm="shared_memory"))  # its buffers are no tensors
    comm.all_reduce(torch.ones(LARGEST))
    return measure(lambda: make(written, comm))


def sizes(make: Callable[[Any, Tally], Step]) -> str:
    """What is measured, which is the step's case: the first line of its docstring."""
    first = (make.__doc__ or "").splitlines()[0].rstrip(".")
    return f"{first[:1].lower()}{first[1:]}"


def computed(written: Any, make: Callable[[Any, Tally], Step]) -> Computed:
    """What the reader's code computes in one of the steps above."""
    step = make(written, Tally(Ours(algorithm="ring")))
    with counted() as count:
        step()
    return count
