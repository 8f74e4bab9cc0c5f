"""Everything through one rank, without help from the others. N ranks, G bytes on each.

*Naive* is one message after another, *direct* is all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from minidist.schedule.algorithms.common import numbered_from
from minidist.schedule.schedule import Schedule, Step


def naive_broadcast(ranks: int, *, root: int = 0) -> Schedule:
    """The root sends its whole tensor to every other rank, one after another.

    N - 1 steps; the root sends (N - 1)G.
    """
    others = numbered_from(root, ranks)[1:]

    def steps() -> Iterator[Step]:
        for rank in others:
            yield Step.of(src=root, dst=rank, chunk=0, reduce=False)

    return Schedule("naive broadcast", "broadcast", ranks, 1, steps, root)


def naive_reduce(ranks: int, *, root: int = 0) -> Schedule:
    """Every other rank sends its whole tensor to the root, one after another.

    N - 1 steps; the root receives (N - 1)G.
    """
    others = numbered_from(root, ranks)[1:]

    def steps() -> Iterator[Step]:
        for rank in others:
            yield Step.of(src=rank, dst=root, chunk=0, reduce=True)

    return Schedule("naive reduce", "reduce", ranks, 1, steps, root)


def naive_all_reduce(ranks: int) -> Schedule:
    """Every rank sends its whole tensor to rank 0, one after another; rank 0 sends the sum back.

    2(N - 1) steps; 2(N - 1)G cross the link of rank 0, in and out together.
    """
    return naive_reduce(ranks).then(naive_broadcast(ranks), "naive all-reduce", "all_reduce")


def direct_gather(ranks: int, *, root: int = 0) -> Schedule:
    """Every other rank sends its chunk to the root, all at once.

    1 step of N - 1 messages; the root receives (N - 1)/N of the gathered tensor.
    """
    others = numbered_from(root, ranks)[1:]

    def steps() -> Iterator[Step]:
        if len(others):
            yield Step.of(src=others, dst=root, chunk=others, reduce=False)

    return Schedule("direct gather", "gather", ranks, ranks, steps, root)


def direct_scatter(ranks: int, *, root: int = 0) -> Schedule:
    """The root sends every other rank its chunk, all at once.

    1 step of N - 1 messages; the root sends (N - 1)/N of its tensor.
    """
    others = numbered_from(root, ranks)[1:]

    def steps() -> Iterator[Step]:
        if len(others):
            yield Step.of(src=root, dst=others, chunk=others, reduce=False)

    return Schedule("direct scatter", "scatter", ranks, ranks, steps, root)
