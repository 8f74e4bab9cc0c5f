"""One rank's program of a schedule, laid out for a tensor: which elements go where, and when.

[Note: pieces in flight] A large message travels as several, of at most `PIECE` bytes, and at most
`WINDOW` posts are on their way at once. While one piece is still coming, the one before it is
reduced, and in a schedule of single chunks it is already passed on in the next step: chunks, and
pieces of a chunk, never mix. What a reduction needs beside the tensor is `WINDOW` inboxes and one,
whatever the tensor's size.

[Note: receiving early] A message that finds its receive posted goes straight to its place; one that
does not waits for a word from the receiver. So a rank posts a step's receives before it waits for
the step before, where it may: what comes in is reduced from an inbox, or overwrites a chunk that
this rank neither received in the step before nor sent then, except to the rank that now sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from minidist.schedule.schedule import Algorithm, Schedule, Send, Step, bounds, spread

PIECE = 4 << 20  # bytes: smaller means more messages and waits, larger overlaps less
WINDOW = 4


class RankStep(NamedTuple):
    """What one rank does in one step; the first two fields are about *all* ranks' messages."""

    width: int  # chunks in the longest
    swaps: bool  # some rank reduces into a chunk that it sends
    early: bool  # see [Note: receiving early]
    sends: tuple[Send, ...]
    receives: tuple[Send, ...]

    def pieces(self, nbytes: int, most: int) -> int:
        """How many pieces messages of at most `nbytes` travel in, the same on all ranks."""
        if self.swaps and self.width > 1:  # runs may overlap in part: a piece of the one must not
            return 1  # be reduced before a later piece of the other has left with the old value
        return max(1, -(-nbytes // most))


@dataclass(frozen=True, eq=False)
class Program:
    """One rank's steps of a schedule, for tensors of any size."""

    name: str
    rank: int
    chunks: int
    steps: tuple[RankStep, ...]


def program(schedule: Schedule, rank: int) -> Program:
    """Check the schedule and take out what `rank` has to do."""
    steps: list[RankStep] = []
    for step in schedule.check():
        width, swaps = int(step.width.max(initial=0)), _swaps(step, schedule.chunks)
        sends = tuple(send for send in step if send.src == rank)
        receives = tuple(send for send in step if send.dst == rank)
        early = not steps or _early(steps[-1], receives)
        steps.append(RankStep(width, swaps, early, sends, receives))
    return Program(schedule.name, rank, schedule.chunks, tuple(steps))


def _early(before: RankStep, receives: tuple[Send, ...]) -> bool:
    """Whether the next receives may be posted before the step before is through."""
    kept = {each.chunk: each.src for each in receives if not each.reduce}
    came = any(each.chunk in kept for each in before.receives)
    left = any(kept.get(each.chunk, each.dst) != each.dst for each in before.sends)
    return not (came or left)


@lru_cache(maxsize=256)
def program_of(algorithm: Algorithm, ranks: int, rank: int, **options: int) -> Program:
    """The program of `algorithm(ranks, **options)` for `rank`, made once and kept."""
    return program(algorithm(ranks, **options), rank)


def _swaps(step: Step, chunks: int) -> bool:
    message, chunk = spread(step)
    reduced = (step.dst[message] * chunks + chunk)[step.reduce[message]]
    return bool(np.isin(reduced, step.src[message] * chunks + chunk).any())


class Elements(NamedTuple):
    """Elements [low, high) of the tensor, sent to or received from `peer` as one message.

    They are counted from the chunk's start where it is a tensor of its own.
    """

    peer: int
    low: int
    high: int
    chunk: int
    reduce: bool


class Post(NamedTuple):
    """Messages that are started together: one piece of one step."""

    step: int
    alone: bool  # everything posted before must have landed
    swaps: bool  # sends must have left before what arrives is reduced
    early: bool  # its receives may be posted along with the post before
    receives: tuple[Elements, ...]
    sends: tuple[Elements, ...]


class Plan(NamedTuple):
    """A program for a tensor of one size."""

    posts: tuple[Post, ...]
    window: int
    inbox: int  # elements that an inbox must have room for


Edges = Callable[[int, Send], list[int]]  # step, message -> where its pieces begin, and its end


@lru_cache(maxsize=256)
def lay_out(prog: Program, numel: int, itemsize: int, piece: int) -> Plan:
    """Lay out `prog` for `numel` elements of `itemsize` bytes in messages of at most `piece` bytes.

    Kept, so that a call that comes back with the same size only has to run it.
    """
    edge: list[int] = bounds(numel, prog.chunks).tolist()
    longest = [step.width * edge[1] for step in prog.steps]
    pieces = [p.pieces(n * itemsize, piece) for p, n in zip(prog.steps, longest, strict=True)]
    room = max((-(-n // p) for n, p in zip(longest, pieces, strict=True)), default=0)

    def edges(step: int, send: Send) -> list[int]:
        low, high = edge[send.chunk], edge[send.chunk + send.width]
        found: list[int] = (low + bounds(high - low, pieces[step])).tolist()
        return found

    # A piece of a run of chunks is not a piece of the next step's run: such steps do not overlap.
    runs = any(step.width > 1 for step in prog.steps)
    posts = tuple(_posts(prog, edges, pieces, apart=runs, early=not runs))
    return Plan(posts, min(WINDOW, max(pieces, default=1)), room if _reduces(prog) else 0)


@lru_cache(maxsize=256)
def lay_out_parts(
    prog: Program, sizes: tuple[tuple[int, int], ...], itemsize: int, piece: int
) -> Plan:
    """The same where each chunk is a tensor of its own, of any size.

    A rank knows `sizes`, (chunk, elements) of those that it sends or receives, but not the longest
    of all: each is cut by its own size, and a step's messages land before the next ones are sent.
    """
    if any(step.width > 1 for step in prog.steps):
        raise ValueError(f"{prog.name} sends runs of chunks: they must lie in one tensor")
    edge = {chunk: bounds(n, max(1, -(-n * itemsize // piece))).tolist() for chunk, n in sizes}
    pieces = [
        max((len(edge[send.chunk]) - 1 for send in (*step.sends, *step.receives)), default=1)
        for step in prog.steps
    ]
    posts = tuple(_posts(prog, lambda _, send: edge[send.chunk], pieces, apart=True, early=True))
    room = max((each.high - each.low for post in posts for each in post.receives), default=0)
    return Plan(posts, WINDOW, room if _reduces(prog) else 0)


def _reduces(prog: Program) -> bool:
    return any(send.reduce for step in prog.steps for send in step.receives)


def _posts(
    prog: Program, edges: Edges, pieces: list[int], *, apart: bool, early: bool
) -> Iterator[Post]:
    for number, step in enumerate(prog.steps):
        for piece in range(pieces[number]):

            def of(send: Send, peer: int, number: int = number, piece: int = piece) -> Elements:
                edge = edges(number, send)
                low, high = (edge[min(at, len(edge) - 1)] for at in (piece, piece + 1))
                return Elements(peer, low, high, send.chunk, send.reduce)

            receives = (of(send, send.src) for send in step.receives)
            sends = (of(send, send.dst) for send in step.sends)
            yield Post(
                number,
                alone=apart and piece == 0,
                swaps=step.swaps,
                early=step.early and early,
                receives=tuple(each for each in receives if each.low < each.high),
                sends=tuple(each for each in sends if each.low < each.high),
            )
