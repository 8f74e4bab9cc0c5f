"""A collective as data: who sends which chunk to whom, step by step.

A tensor is split into `chunks` chunks. In each step some ranks send a run of consecutive chunks to
another rank, which either reduces it into its own copy (adds, for a sum) or overwrites its copy.
All messages of a step leave at the same time: what is sent is what the sender held before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from minidist.errors import ScheduleError, checked
from minidist.schedule.checks import whole_number

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Collective = Literal[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "shift",
]


class Send(NamedTuple):
    """One message: `width` chunks from `chunk` on, reduced or written at the receiver."""

    src: int
    dst: int
    chunk: int
    reduce: bool
    width: int = 1

    def __str__(self) -> str:
        last = self.chunk + self.width - 1
        what = f"chunks {self.chunk}..{last}" if self.width > 1 else f"chunk {self.chunk}"
        then = "reduces it into its own" if self.reduce else "overwrites its own"
        return f"rank {self.src} sends {what} to rank {self.dst}, which {then}"


@dataclass(frozen=True, eq=False)
class Step:
    """Messages that leave together, as arrays: a ring over 4,096 ranks has 33 million of them."""

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: Bools
    width: Ints

    @classmethod
    def of(cls, src: Any, dst: Any, chunk: Any, reduce: Any, width: Any = 1) -> Step:
        """Build a step from arrays or scalars, broadcast against each other."""
        given = {"src": src, "dst": dst, "chunk": chunk, "reduce": reduce, "width": width}
        fields = {name: np.array(value, ndmin=1) for name, value in given.items()}
        for name, field in fields.items():
            if field.size and field.dtype.kind not in "iub":
                raise TypeError(f"{name}: expected whole numbers, got {given[name]!r}")
            fields[name] = field.astype(np.bool_ if name == "reduce" else np.int64, copy=False)
        return cls(*np.broadcast_arrays(*fields.values()))

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Send]:
        rows = zip(self.src, self.dst, self.chunk, self.reduce, self.width, strict=True)
        return (Send(int(s), int(d), int(c), bool(r), int(k)) for s, d, c, r, k in rows)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A named collective among `ranks` ranks, on a tensor split into `chunks` chunks.

    Raises ValueError if `ranks` or `chunks` is below 1, or `root` is none of the ranks.
    """

    name: str
    collective: Collective  #: what it promises; see `replay.start` and `goal`
    ranks: int
    chunks: int
    make_steps: Callable[[], Iterable[Step]]  #: afresh each time; empty steps are left out
    root: int = 0  #: the rank that a broadcast, reduce, gather or scatter is from or to
    by: int = 0  #: how many ranks a shift goes on
    alike: int = 0  #: number of steps if they differ in their chunks alone, else 0
    phases: tuple[Schedule, ...] = ()  #: the schedules that this one is joined of; see `outline`

    def __post_init__(self) -> None:
        whole_number("ranks", self.ranks, 1)
        whole_number("chunks", self.chunks, 1)
        whole_number("by", self.by)
        if not 0 <= whole_number("root", self.root) < self.ranks:
            raise ValueError(f"root must be in 0..{self.ranks - 1}, got {self.root}")

    def __iter__(self) -> Iterator[Step]:
        return (step for step in self.make_steps() if len(step))

    def outline(self) -> Iterator[tuple[Step, int]]:
        """(step, times): a run of steps that differ only in their chunks, by its first.

        What a step costs does not depend on which chunks it carries. So a ring over 65,536 ranks
        is priced by 2 steps instead of 131,070.
        """
        if self.phases:
            return chain.from_iterable(phase.outline() for phase in self.phases)
        steps = islice(self, 1) if self.alike else self
        return ((step, self.alike or 1) for step in steps)

    def then(self, other: Schedule, name: str, collective: Collective) -> Schedule:
        """Return this schedule followed by `other`, over the same ranks and chunks."""
        joined, steps = (self, other), lambda: chain(self, other)
        return Schedule(name, collective, self.ranks, self.chunks, steps, self.root, phases=joined)

    def backwards(self, name: str, collective: Collective, *, reduce: bool) -> Schedule:
        """Return the same messages reversed: the last step first, receivers as senders."""
        steps = [Step.of(each.dst, each.src, each.chunk, reduce, each.width) for each in self][::-1]
        return Schedule(name, collective, self.ranks, self.chunks, lambda: steps, self.root)

    def check(self) -> Schedule:
        """Return self if every step is safe to run, else raise `ScheduleError`.

        Rejected, naming step and message: a rank or chunk out of range; a message to oneself; a
        chunk that one step writes twice, or both sends and overwrites, on one rank (a race: the
        outcome would depend on which message is first); and a receiver that must reduce two
        messages in one step, for which the executor has one inbox.
        """
        for number, step in enumerate(self):
            for bad, why in _faults(self, step):
                if bad.any():
                    send = list(step)[int(np.flatnonzero(bad)[0])]
                    raise ScheduleError(f"{self.name}, step {number + 1}: {send}: {why}")
        return self


Algorithm = Callable[..., Schedule]  # number of ranks, options such as root -> schedule


@checked
def bounds(numel: int, chunks: int) -> Ints:
    """Edges of `chunks` slices of `numel` elements: where each begins and, at the end, `numel`.

    Sizes differ by one at most and the shorter slices come last, as
    `torch.tensor_split` does it; nothing is padded. Slice c is
    `[bounds[c], bounds[c + 1])`, and empty when there are too few elements.
    """
    size, longer = divmod(numel, chunks)
    index = np.arange(chunks + 1)
    return index * size + np.minimum(index, longer)


def _faults(schedule: Schedule, step: Step) -> Iterator[tuple[Bools, str]]:
    n, chunks = schedule.ranks, schedule.chunks
    bad_rank = (step.src < 0) | (step.src >= n) | (step.dst < 0) | (step.dst >= n)
    bad_chunk = (step.chunk < 0) | (step.chunk + step.width > chunks)
    yield step.width < 1, "a message of no chunks"
    yield bad_rank, f"a rank is not in 0..{n - 1}"
    yield bad_chunk, f"a chunk is not in 0..{chunks - 1}"
    yield step.src == step.dst, "a rank sends to itself"
    message, chunk = spread(step)
    written, sent = step.dst[message] * chunks + chunk, step.src[message] * chunks + chunk
    twice = np.isin(written, _repeated(written))
    clash = np.isin(written, sent) & ~step.reduce[message]
    for what, which in (("is written twice", twice), ("is also sent", clash)):
        bad = np.isin(np.arange(len(step)), message[which])
        yield bad, f"a race: the receiver's chunk {what} in this step"
    adds = np.isin(step.dst, _repeated(step.dst[step.reduce])) & step.reduce
    yield adds, "the receiver reduces two messages in one step"


def spread(step: Step) -> tuple[Ints, Ints]:
    if (step.width == 1).all():
        return np.arange(len(step)), step.chunk
    message = np.repeat(np.arange(len(step)), step.width)
    offset = np.arange(len(message)) - np.repeat(np.cumsum(step.width) - step.width, step.width)
    return message, step.chunk[message] + offset


def _repeated(values: Ints) -> Ints:
    unique, times = np.unique(values, return_counts=True)
    return unique[times > 1]
