"""Replay a schedule in one process and say what it does, message by message.

Instead of numbers each (rank, chunk) holds its *contributors*: the ranks whose parts are summed in
it. A sum is right when every rank is in it once. The idea of symbolic chunks that remember where
they came from is that of MSCCLang (Cowan et al., 2023).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidist.errors import ScheduleError
from minidist.schedule.checks import whole_number
from minidist.schedule.schedule import Collective, Ints, Schedule, bounds

Contributors = tuple[int, ...]  # ranks in ascending order; a rank counted twice stands twice
State = tuple[tuple[Contributors, ...], ...]  # state[rank][chunk]
Goal = tuple[tuple[Contributors | None, ...], ...]  # None: whatever is left there


class Event(NamedTuple):
    """One chunk of one message: what was sent, and what the receiver holds after the step."""

    step: int
    src: int
    dst: int
    chunk: int
    reduce: bool
    carried: Contributors
    result: Contributors


@dataclass(frozen=True)
class Replay:
    """Everything a schedule did: the state before, what is wanted, and each event in order."""

    name: str
    ranks: int
    chunks: int
    steps: int
    start: State
    goal: Goal
    events: tuple[Event, ...]
    phases: tuple[tuple[str, int], ...] = ()  #: what each promises, and how many steps it takes

    def state(self, after: int | None = None) -> State:
        """What each rank holds after so many steps; after all of them by default."""
        held = [list(row) for row in self.start]
        for event in self.events:
            if after is None or event.step < after:
                held[event.dst][event.chunk] = event.result
        return tuple(map(tuple, held))

    def right(self) -> int:
        """The number of `wanted` (rank, chunk) pairs that end as the collective promises."""
        ends = zip(self.state(), self.goal, strict=True)
        return sum(a == b for row, want in ends for a, b in zip(row, want, strict=True) if b)

    @property
    def wanted(self) -> int:
        """The number of (rank, chunk) pairs that the collective promises anything about."""
        return sum(want is not None for row in self.goal for want in row)


def start(collective: Collective, ranks: int, chunks: int, root: int = 0) -> State:
    """The precondition: which contributors each (rank, chunk) holds before the first step."""

    def held(rank: int, chunk: int) -> Contributors:
        return (rank,) if _origin(collective, ranks, chunk, root) in (None, rank) else ()

    return tuple(tuple(held(r, c) for c in range(chunks)) for r in range(ranks))


def goal(collective: Collective, ranks: int, chunks: int, root: int = 0, by: int = 0) -> Goal:
    """The postcondition; None where a collective leaves a chunk undefined."""
    everyone = tuple(range(ranks))

    def wanted(rank: int, chunk: int) -> Contributors | None:
        if _target(collective, ranks, chunk, root, by) not in (None, rank):
            return None
        origin = _origin(collective, ranks, chunk, root)
        return everyone if origin is None else (origin,)

    return tuple(tuple(wanted(r, c) for c in range(chunks)) for r in range(ranks))


def _origin(collective: Collective, ranks: int, chunk: int, root: int) -> int | None:
    if collective in ("broadcast", "scatter"):
        return root
    if collective == "all_to_all":  # chunk s * N + d is the block from s to d
        return chunk // ranks
    return chunk if collective in ("all_gather", "gather", "shift") else None


def _target(collective: Collective, ranks: int, chunk: int, root: int, by: int) -> int | None:
    if collective in ("reduce", "gather"):
        return root
    if collective in ("all_to_all", "shift"):
        return (chunk + by) % ranks
    return chunk if collective in ("reduce_scatter", "scatter") else None


def replay(schedule: Schedule) -> Replay:
    """Run every message on symbolic chunks, for pictures and proofs of some dozens of ranks."""
    kind, n, chunks, root = schedule.collective, schedule.ranks, schedule.chunks, schedule.root
    before = start(kind, n, chunks, root)
    held = [list(row) for row in before]
    steps, events = list(schedule), list[Event]()
    for number, step in enumerate(steps):
        arrivals = []
        for send in step:
            for chunk in range(send.chunk, send.chunk + send.width):
                carried, own = held[send.src][chunk], held[send.dst][chunk]
                if not carried or (send.reduce and not own):
                    where = f"{schedule.name}, step {number + 1}: {send}"
                    without = send.dst if carried else send.src
                    raise ScheduleError(f"{where}: rank {without} does not hold it")
                result = tuple(sorted(own + carried)) if send.reduce else carried
                arrivals.append(
                    Event(number, send.src, send.dst, chunk, send.reduce, carried, result)
                )
        for event in arrivals:  # only now: a step sends what was held before it
            held[event.dst][event.chunk] = event.result
        events += arrivals
    wanted = goal(kind, n, chunks, root, schedule.by)
    phases = _phases(schedule)
    return Replay(schedule.name, n, chunks, len(steps), before, wanted, tuple(events), phases)


def _phases(schedule: Schedule) -> tuple[tuple[str, int], ...]:
    kinds = [phase.collective.replace("_", "-") for phase in schedule.phases]
    lengths = [sum(1 for _ in phase) for phase in schedule.phases]
    apart = len({*kinds}) == len(kinds)
    return tuple((k, n) for k, n in zip(kinds, lengths, strict=True) if n) if apart else ()


@dataclass(frozen=True)
class Traffic:
    """What a schedule moves: arrays with one entry for each rank, and bytes that leave a node."""

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
