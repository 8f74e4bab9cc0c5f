"""Replay a schedule in one process and say what it does, message by message.

Instead of numbers each (rank, chunk) holds its *contributors*: the ranks whose parts are summed in
it. A sum is right when every rank is in it once. The idea of symbolic chunks that remember where
they came from is that of MSCCLang (Cowan et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minidist.schedule import Collective, Ints, Schedule, ScheduleError, Step, bounds, spread

Contributors = tuple[int, ...]  # ranks in ascending order; a rank counted twice stands twice
State = tuple[tuple[Contributors, ...], ...]  # state[rank][chunk]
Goal = tuple[tuple[Contributors | None, ...], ...]  # None: whatever is left there


class Event(NamedTuple):
    """One chunk of one message.

    `carried` is what was sent, `result` what the receiver holds in that chunk after the step.
    """

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

    def state(self, after: int | None = None) -> State:
        """What each rank holds after `after` steps (all of them by default)."""
        held = [list(row) for row in self.start]
        for event in self.events:
            if after is None or event.step < after:
                held[event.dst][event.chunk] = event.result
        return tuple(map(tuple, held))

    def right(self) -> int:
        """How many (rank, chunk) pairs that matter end as the collective promises."""
        ends = zip(self.state(), self.goal, strict=True)
        return sum(a == b for row, want in ends for a, b in zip(row, want, strict=True) if b)

    @property
    def wanted(self) -> int:
        """How many (rank, chunk) pairs matter."""
        return sum(want is not None for row in self.goal for want in row)


def start(collective: Collective, ranks: int, chunks: int) -> State:
    """The precondition: which contributors each (rank, chunk) holds before the first step."""

    def held(rank: int, chunk: int) -> Contributors:
        if collective == "all_gather":
            return (chunk,) if rank == chunk else ()
        return (rank,)

    return tuple(tuple(held(r, c) for c in range(chunks)) for r in range(ranks))


def goal(collective: Collective, ranks: int, chunks: int) -> Goal:
    """The postcondition. Where a collective leaves a chunk undefined it is None."""
    everyone = tuple(range(ranks))

    def wanted(rank: int, chunk: int) -> Contributors | None:
        if collective == "all_gather":
            return (chunk,)
        return everyone if collective == "all_reduce" or rank == chunk else None

    return tuple(tuple(wanted(r, c) for c in range(chunks)) for r in range(ranks))


def replay(schedule: Schedule) -> Replay:
    """Run every message on symbolic chunks. For pictures and proofs of up to some dozens of ranks.

    Raises:
        ScheduleError: a rank sends a chunk that it does not hold yet.
    """
    before = start(schedule.collective, schedule.ranks, schedule.chunks)
    held = [list(row) for row in before]
    events: list[Event] = []
    number = -1
    for number, step in enumerate(schedule):
        arrivals = []
        for send in step:
            for chunk in range(send.chunk, send.chunk + send.width):
                carried = held[send.src][chunk]
                if not carried:
                    where = f"{schedule.name}, step {number + 1}: {send}"
                    raise ScheduleError(f"{where}: rank {send.src} does not hold it")
                kept = held[send.dst][chunk] if send.reduce else ()
                result = tuple(sorted(kept + carried))
                arrivals.append(
                    Event(number, send.src, send.dst, chunk, send.reduce, carried, result)
                )
        for event in arrivals:  # only now: a step sends what was held before it
            held[event.dst][event.chunk] = event.result
        events += arrivals
    wanted = goal(schedule.collective, schedule.ranks, schedule.chunks)
    return Replay(
        schedule.name, schedule.ranks, schedule.chunks, number + 1, before, wanted, tuple(events)
    )


@dataclass(frozen=True)
class Traffic:
    """What a schedule moves.

    `sent_messages`, `sent_bytes`, `received_bytes`: int64 arrays, one entry for each rank.
    `between_nodes`: bytes that leave a node, of all ranks together.
    """

    steps: int
    sent_messages: Ints
    sent_bytes: Ints
    received_bytes: Ints
    between_nodes: int

    @property
    def busiest(self) -> int:
        """Bytes that cross the busiest rank's link, in and out together."""
        return int((self.sent_bytes + self.received_bytes).max())


def traffic(schedule: Schedule, numel: int, itemsize: int = 4, local: int | None = None) -> Traffic:
    """Count the messages and bytes for a tensor of `numel` elements of `itemsize` bytes.

    Empty chunks are not sent, so they do not count. With `local` ranks to a node, numbered node by
    node, `between_nodes` is the bytes that leave a node.
    """
    edge = bounds(numel, schedule.chunks) * itemsize
    n = schedule.ranks
    messages, sent, received = (np.zeros(n, dtype=np.int64) for _ in range(3))
    between = steps = 0
    for step in schedule:
        size = edge[step.chunk + step.width] - edge[step.chunk]
        messages += np.bincount(step.src[size > 0], minlength=n)
        np.add.at(sent, step.src, size)
        np.add.at(received, step.dst, size)
        if local:
            between += int(size[step.src // local != step.dst // local].sum())
        steps += 1
    return Traffic(steps, messages, sent, received, between)


def prove_all_reduce(schedule: Schedule, block: int = 256) -> None:
    """Prove that every rank ends with every rank's part of every chunk exactly once.

    The same replay on bit sets, for thousands of ranks: chunks never mix, so they are proven
    `block` at a time, with ranks x block x ranks / 8 bytes of memory.

    The schedule must have passed `check()`.

    Raises:
        ScheduleError: a part would be counted twice, or is missing at the end.
    """
    n = schedule.ranks
    words = -(-n // 64)
    own = np.zeros((n, words), dtype=np.uint64)
    own[np.arange(n), np.arange(n) // 64] = np.uint64(1) << (np.arange(n) % 64).astype(np.uint64)
    everyone = np.bitwise_or.reduce(own, axis=0)
    for low in range(0, schedule.chunks, block):
        width = min(block, schedule.chunks - low)
        held = np.repeat(own[:, None], width, axis=1)
        for number, step in enumerate(schedule):
            _bit_step(schedule.name, number, step, low, width, held)
        if (held != everyone).any():
            rank, chunk, _ = (int(i[0]) for i in np.nonzero(held != everyone))
            raise ScheduleError(
                f"{schedule.name}: rank {rank} ends without every part of chunk {low + chunk}"
            )


def _bit_step(
    name: str, number: int, step: Step, low: int, width: int, held: npt.NDArray[np.uint64]
) -> None:
    message, chunk = spread(step)
    near = (chunk >= low) & (chunk < low + width)
    message, chunk = message[near], chunk[near] - low
    src, dst, reduce = step.src[message], step.dst[message], step.reduce[message]
    carried = held[src, chunk]
    kept = np.where(reduce[:, None], held[dst, chunk], np.uint64(0))
    if (kept & carried).any():
        row = int(np.nonzero((kept & carried).any(axis=1))[0][0])
        raise ScheduleError(
            f"{name}, step {number + 1}: rank {dst[row]} would count a part of chunk "
            f"{low + chunk[row]} twice"
        )
    held[dst, chunk] = kept | carried
