"""One rank's program of a schedule, laid out for a tensor: which elements go where, and when.

[Note: segments in flight] A large message travels in segments of at most `MAX_MESSAGE` bytes (on a
GPU, whose host takes some 100 us to queue a post, `MAX_ON_GPU`), and at most `WINDOW` posts are on
their way at once. While one segment is still coming, the one before it is reduced, and in a
schedule of single chunks it is already passed on in the next step: chunks, and segments of a chunk,
never mix. What a reduction needs beside the tensor is `WINDOW` inboxes and one, whatever its size.

[Note: receiving early] A message that finds its receive posted goes straight to its place; one that
does not waits for a word from the receiver. So a rank posts a step's receives before it waits for
the step before, where it may: what comes in is reduced from an inbox, or overwrites a chunk that
this rank neither received in the step before nor sent then, except to the rank that now sends it.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from minidist.schedule.schedule import Algorithm, Schedule, Send, bounds, spread

MAX_MESSAGE = 4 << 20  # bytes: smaller means more messages and waits, larger overlaps less
MAX_ON_GPU = 64 << 20
WINDOW = 4


class RankStep(NamedTuple):
    """One rank's messages in one step; `width` and `swaps` are about *all* ranks' messages."""

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
        message, chunk = spread(step)
        reduced = (step.dst[message] * schedule.chunks + chunk)[step.reduce[message]]
        swaps = bool(np.isin(reduced, step.src[message] * schedule.chunks + chunk).any())
        sends = tuple(send for send in step if send.src == rank)
        receives = tuple(send for send in step if send.dst == rank)
        early = not steps or _early(steps[-1], receives)
        steps.append(RankStep(int(step.width.max()), swaps, early, sends, receives))
    return Program(schedule.name, rank, schedule.chunks, tuple(steps))


def _early(before: RankStep, receives: tuple[Send, ...]) -> bool:
    kept = {each.chunk: each.src for each in receives if not each.reduce}
    came = any(each.chunk in kept for each in before.receives)
    left = any(kept.get(each.chunk, each.dst) != each.dst for each in before.sends)
    return not (came or left)


@lru_cache(maxsize=256)
def program_of(algorithm: Algorithm, ranks: int, rank: int, **options: int) -> Program:
    """Return the program of `algorithm(ranks, **options)` for `rank`, made once and kept."""
    return program(algorithm(ranks, **options), rank)


class Elements(NamedTuple):
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


class Layout(NamedTuple):
    """A program for a tensor of one size."""

    posts: tuple[Post, ...]
    window: int
    inbox: int  # elements that an inbox must have room for


@lru_cache(maxsize=256)
def lay_out(
    prog: Program, size: int | tuple[tuple[int, int], ...], itemsize: int, most: int
) -> Layout:
    """Lay out `prog` for elements of `itemsize` bytes, in messages of at most `most` bytes.

    Kept, so that a call that comes back with the same size only has to run it.

    Args:
        size: elements of the tensor. Or, where each chunk is a tensor of its own, of any size, and
            no message is a run: (chunk, elements) of each that this rank sends or receives.
    """
    if isinstance(size, int):
        edge = bounds(size, prog.chunks).tolist()
        begin, end = dict(enumerate(edge)), dict(enumerate(edge[1:]))
    else:
        begin, end = dict.fromkeys(dict(size), 0), dict(size)
    # A step lands before the next is sent, unless segments match: as many on all ranks, with the
    # same elements in both steps. In runs they do not (half of chunks 0 and 1 is not half of 1 and
    # 2), nor where chunks are tensors, of which a rank does not know the longest.
    runs = any(step.width > 1 for step in prog.steps)
    apart = runs or not isinstance(size, int)

    def pieces(elements: int) -> int:
        return max(1, -(-elements * itemsize // most))

    def cut(peer: int, send: Send, count: int) -> list[Elements]:
        low, high = begin[send.chunk], end[send.chunk + send.width - 1]
        edge = (low + bounds(high - low, count or pieces(high))).tolist()
        return [Elements(peer, a, b, send.chunk, send.reduce) for a, b in pairwise(edge) if a < b]

    posts, window = list[Post](), 1
    for number, step in enumerate(prog.steps):
        count = 0  # segments of each message; 0: as many as its own size asks for
        if isinstance(size, int):  # on all ranks as many as the step's longest message has
            # Runs that ranks swap go in one segment. They may overlap in part, and a segment of one
            # must not be reduced before a later one of the other has left with the old value.
            one = step.swaps and step.width > 1
            count = 1 if one else pieces(step.width * end[0])
        receives = [cut(send.src, send, count) for send in step.receives]
        sends = [cut(send.dst, send, count) for send in step.sends]
        count = max([1, count, *map(len, receives + sends)])
        window = max(window, min(WINDOW, count))
        posts += [
            Post(
                number,
                alone=apart and segment == 0,
                swaps=step.swaps,
                early=step.early and not runs,
                receives=tuple(each[segment] for each in receives if segment < len(each)),
                sends=tuple(each[segment] for each in sends if segment < len(each)),
            )
            for segment in range(count)
        ]
    reduced = [each.high - each.low for post in posts for each in post.receives if each.reduce]
    return Layout(tuple(posts), window, inbox=max(reduced, default=0))
