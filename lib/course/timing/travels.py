"""Times at which the units of an FSDP model travel, and at which a rank waits for one."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, cast

from torch import Tensor

from course.timing.turns import Round
from from_scratch.fsdp import FSDP
from minidist.comm.comm import Around, Comm, Handle, Pending, Start
from minidist.profiler.event import Interval
from minidist.profiler.spans import COMMUNICATION, COMPUTE, Span
from minidist.profiler.timeline import mark, note

WAITING = "waiting"


class Awaited(NamedTuple):
    """A handle whose wait happens in a context that records it."""

    inner: Handle
    waiting: Callable[[], AbstractContextManager[object]]

    def wait(self) -> None:
        """Return when the result is in place."""
        with self.waiting():
            self.inner.wait()

    @property
    def span(self) -> Interval | None:
        """The time that the call was on the link."""
        return self.inner.span


class Recorded(Around):
    """A unit's comm that records its calls in the timeline, with the unit's number."""

    def __init__(self, comm: Comm, number: int) -> None:
        super().__init__(comm)
        self.number = number

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Start the call, and record it."""
        work = call(True)
        assert work is not None
        note(f"{name.replace('_', '-')} {self.number}", COMMUNICATION, work)
        handle = Awaited(work, partial(mark, WAITING, WAITING))
        if async_op:
            return handle
        handle.wait()
        return None


def record(model: FSDP) -> FSDP:
    """Let the units report their calls: the root as number 0, the blocks as 1, 2, ... in order."""
    *blocks, root = model.units
    for number, unit in enumerate([root, *blocks]):
        unit.comm = Recorded(cast("Comm", unit.comm), number)
    return model


def without_waits(spans: Sequence[Span]) -> list[Span]:
    """The same spans, with forward and backward cut where their rank waits."""
    cut = [span for span in spans if span.lane != WAITING]
    for wait in (span for span in spans if span.lane == WAITING):
        for span in [s for s in cut if (s.rank, s.lane) == (wait.rank, COMPUTE)]:
            cut.remove(span)
            before = span._replace(end=min(span.end, wait.start))
            after = span._replace(start=max(span.start, wait.end))
            cut += [part for part in (before, after) if part.start < part.end]
    return sorted(cut, key=lambda span: span.start)


def exposed_ms(spans: Sequence[Span]) -> float:
    """Milliseconds in which a rank waits while it communicates, the mean of all ranks."""
    seconds = sum(
        max(0.0, min(wait.end, sent.end) - max(wait.start, sent.start))
        for wait in spans
        for sent in spans
        if (wait.lane, sent.lane) == (WAITING, COMMUNICATION) and wait.rank == sent.rank
    )
    return 1e3 * seconds / len({span.rank for span in spans})


def side_by_side(rounds: Iterable[Round]) -> list[Span]:
    """Rank 0's spans in several rounds, as those of ranks 0, 1, ... that start at the same time."""
    return [
        span._replace(rank=index, start=span.start - each.start, end=span.end - each.start)
        for index, each in enumerate(rounds)
        for span in without_waits(each.spans)
        if span.rank == 0
    ]
