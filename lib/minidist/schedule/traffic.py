"""A schedule at work between its ranks: a replay on symbolic chunks, and the traffic of each.

`replay` hands the messages to `minidist.schedule.replay`, which remembers whose parts are in each
chunk; `traffic` counts messages and bytes with arrays, for thousands of ranks.
"""

from dataclasses import dataclass

import numpy as np

from minidist.errors import ScheduleError
from minidist.schedule.checks import whole_number
from minidist.schedule.replay import Fault, Replay
from minidist.schedule.schedule import Ints, Schedule, bounds


def replay(schedule: Schedule) -> Replay:
    """Run every message on symbolic chunks, for pictures and proofs of some dozens of ranks.

    Raises ScheduleError if a rank does not hold what it sends, or what it adds to.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected one such as ring_all_reduce(4), got {schedule!r}")
    done = Replay(
        schedule.collective,
        schedule.ranks,
        schedule.chunks,
        schedule.root,
        schedule.by,
        schedule.name,
        _phases(schedule),
    )
    for step in schedule:
        try:
            done.step(list(step))
        except Fault as fault:
            where = f"{schedule.name}, step {done.steps + 1}: {fault.send}"
            raise ScheduleError(f"{where}: rank {fault.rank} does not hold it") from None
    return done


def _phases(schedule: Schedule) -> tuple[tuple[str, int], ...]:
    kinds = [phase.collective.replace("_", "-") for phase in schedule.phases]
    lengths = [sum(1 for _ in phase) for phase in schedule.phases]
    apart = len({*kinds}) == len(kinds)
    return tuple((k, n) for k, n in zip(kinds, lengths, strict=True) if n) if apart else ()


@dataclass(frozen=True)
class Traffic:
    """Traffic of a schedule: arrays with one entry for each rank, and bytes that leave a node."""

    steps: int
    sent_messages: Ints
    sent_bytes: Ints
    received_bytes: Ints
    between_nodes: int

    @property
    def busiest(self) -> int:
        """The bytes that cross the busiest rank's link, in and out together."""
        return int((self.sent_bytes + self.received_bytes).max())


def traffic(schedule: Schedule, numel: int, itemsize: int = 4, local: int | None = None) -> Traffic:
    """Count the messages and bytes for a tensor of `numel` elements of `itemsize` bytes.

    Empty chunks are not sent, so they do not count. Ranks are numbered node by node, `local` each.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule: expected one such as ring_all_reduce(4), got {schedule!r}")
    whole_number("numel", numel, 0)
    whole_number("itemsize", itemsize, 1)
    local = whole_number("local", schedule.ranks if local is None else local, 1)
    edge = bounds(numel, schedule.chunks) * itemsize
    n = schedule.ranks
    messages, sent, received = (np.zeros(n, dtype=np.int64) for _ in range(3))
    between = steps = 0
    for step in schedule:
        size = edge[step.chunk + step.width] - edge[step.chunk]
        messages += np.bincount(step.src[size > 0], minlength=n)
        np.add.at(sent, step.src, size)
        np.add.at(received, step.dst, size)
        between += int(size[step.src // local != step.dst // local].sum())
        steps += 1
    return Traffic(steps, messages, sent, received, between)
