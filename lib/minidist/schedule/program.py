"""One rank's program of a schedule, laid out for a tensor: which elements go where, and when.

[Note: segments in flight] A large message travels in segments of at most `MAX_MESSAGE` bytes, and
at most `WINDOW` posts are on their way at once. While one segment is still coming, the one before
it is reduced, and in a schedule of single chunks it is already passed on in the next step: chunks,
and segments of a chunk, never mix. What a reduction needs beside the tensor is `WINDOW` inboxes and
one, whatever the tensor's size.

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

MAX_MESSAGE = 4 << 20  # bytes: smaller means more messages and waits, larger overlaps less
WINDOW = 4


class RankStep(NamedTuple):
    """What one rank does in one step; `width` and `swaps` are about *all* ranks' messages."""

    width: int  # chunks in the longest
    swaps: bool  # some rank reduces into a chunk that it sends
    early: bool  # see [Note: receiving early]
    sends: tuple[Send, ...]
    receives: tuple[Send, ...]


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
    """Messages that are started together: one segment of each message of a step."""

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


Cut = Callable[[int, Send], list[int]]  # step, message -> where its segments begin, and its end


@lru_cache(maxsize=256)
def lay_out(prog: Program, numel: int, itemsize: int, most: int) -> Plan:
    """Lay out `prog` for `numel` elements of `itemsize` bytes in messages of at most `most` bytes.

    Kept, so that a call that comes back with the same size only has to run it.
    """
    edge: list[int] = bounds(numel, prog.chunks).tolist()
    counts = []  # segments of each step, the same on all ranks
    for step in prog.steps:
        # Runs may overlap in part. Where ranks swap them, a segment of the one must not be reduced
        # before a later segment of the other has left with the old value.
        one = step.swaps and step.width > 1
        counts.append(1 if one else max(1, -(-step.width * edge[1] * itemsize // most)))

    def cut(step: int, send: Send) -> list[int]:
        low, high = edge[send.chunk], edge[send.chunk + send.width]
        found: list[int] = (low + bounds(high - low, counts[step])).tolist()
        return found

    # A segment of a run of chunks is not one of the next step's run: such steps do not overlap.
    runs = any(step.width > 1 for step in prog.steps)
    window = min(WINDOW, max(counts, default=1))
    return _plan(prog, cut, counts, window, apart=runs, early=not runs)


@lru_cache(maxsize=256)
def lay_out_chunks(
    prog: Program, sizes: tuple[tuple[int, int], ...], itemsize: int, most: int
) -> Plan:
    """The same where each chunk is a tensor of its own, of any size; no message is a run.

    A rank knows `sizes`, (chunk, elements) of those that it sends or receives, but not the longest
    of all: each is cut by its own size, and a step's messages land before the next ones are sent.
    """
    edge = {chunk: bounds(n, max(1, -(-n * itemsize // most))).tolist() for chunk, n in sizes}
    counts = [
        max((len(edge[send.chunk]) - 1 for send in (*step.sends, *step.receives)), default=1)
        for step in prog.steps
    ]
    return _plan(prog, lambda _, send: edge[send.chunk], counts, WINDOW, apart=True, early=True)


def _plan(
    prog: Program, cut: Cut, counts: list[int], window: int, *, apart: bool, early: bool
) -> Plan:
    posts, inbox = [], 0
    for number, step in enumerate(prog.steps):
        receives = [(send.src, send, cut(number, send)) for send in step.receives]
        sends = [(send.dst, send, cut(number, send)) for send in step.sends]
        for segment in range(counts[number]):
            post = Post(
                number,
                alone=apart and segment == 0,
                swaps=step.swaps,
                early=step.early and early,
                receives=tuple(_segment(receives, segment)),
                sends=tuple(_segment(sends, segment)),
            )
            posts.append(post)
            inbox = max(inbox, *(at.high - at.low for at in post.receives if at.reduce), 0)
    return Plan(tuple(posts), window, inbox)


def _segment(messages: list[tuple[int, Send, list[int]]], segment: int) -> Iterator[Elements]:
    """One segment of each message (peer, message, its edges); short messages may have fewer."""
    for peer, send, edge in messages:
        low, high = edge[segment : segment + 2] if segment + 1 < len(edge) else (0, 0)
        if low < high:
            yield Elements(peer, low, high, send.chunk, send.reduce)
