"""No rank passes anything on: each sends straight to those that its data is for.

*Naive*: the ranks take turns. *Direct*: all send at once. *Pairwise*: in each step every rank sends
to another partner. N ranks, G bytes in the whole tensor.
"""

from collections.abc import Iterator

import numpy as np

from minidist.schedule.schedule import Schedule, Step


def naive_broadcast(ranks: int, *, root: int = 0) -> Schedule:
    """The root sends its whole tensor to every other rank, one after another.

    N - 1 steps; the root sends (N - 1)G.
    """

    def steps() -> Iterator[Step]:
        for t in range(1, ranks):
            yield Step.of(src=root, dst=(root + t) % ranks, chunk=0, reduce=False)

    return Schedule("naive broadcast", "broadcast", ranks, 1, steps, root)


def naive_all_reduce(ranks: int) -> Schedule:
    """Every rank sends its whole tensor to rank 0, one after another; rank 0 sends the sum back.

    2(N - 1) steps; 2(N - 1)G cross the link of rank 0, in and out together.
    """

    def steps() -> Iterator[Step]:
        for rank in range(1, ranks):
            yield Step.of(src=rank, dst=0, chunk=0, reduce=True)
        yield from naive_broadcast(ranks)

    return Schedule("naive all-reduce", "all_reduce", ranks, 1, steps)


def direct_gather(ranks: int, *, root: int = 0) -> Schedule:
    """Every other rank sends its chunk to the root, all at once.

    1 step of N - 1 messages; the root receives (N - 1)/N of the gathered tensor.
    """
    others = (root + np.arange(1, ranks)) % ranks
    step = Step.of(src=others, dst=root, chunk=others, reduce=False)
    return Schedule("direct gather", "gather", ranks, ranks, lambda: [step], root)


def direct_scatter(ranks: int, *, root: int = 0) -> Schedule:
    """The root sends every other rank its chunk, all at once.

    1 step of N - 1 messages; the root sends (N - 1)/N of its tensor.
    """
    return direct_gather(ranks, root=root).backwards("direct scatter", "scatter", reduce=False)


def pairwise_all_to_all(ranks: int) -> Schedule:
    """In step t every rank sends to the one t + 1 places on; chunk s * N + d is the block s to d.

    N - 1 steps. G is the bytes of all N^2 blocks; each rank holds N and sends N - 1 of them, the
    least that is possible (Thakur, Rabenseifner and Gropp, 2005).
    """
    rank = np.arange(ranks)

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            to = (rank + t + 1) % ranks
            yield Step.of(src=rank, dst=to, chunk=rank * ranks + to, reduce=False)

    return Schedule("pairwise all-to-all", "all_to_all", ranks, ranks**2, steps)


def ring_shift(ranks: int, *, by: int = 1) -> Schedule:
    """Every rank sends its chunk to the rank `by` places on, round the ring; `by` may be negative.

    1 step of one chunk a rank; none if `by` is a multiple of N.
    """
    rank = np.arange(ranks)

    def steps() -> Iterator[Step]:
        if by % ranks:
            yield Step.of(src=rank, dst=(rank + by) % ranks, chunk=rank, reduce=False)

    return Schedule("ring shift", "shift", ranks, ranks, steps, by=by)


def direct_reduce_scatter(ranks: int) -> Schedule:
    """In step t every rank sends the one t + 1 places on that rank's chunk, to be reduced.

    N - 1 steps, as in the ring, for a rank reduces one message a step; each rank sends (N - 1)/N of
    G. No step waits for another's result, but a message may go any distance. Called pairwise
    exchange by Thakur, Rabenseifner and Gropp (2005).
    """
    rank = np.arange(ranks)

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            to = (rank + t + 1) % ranks
            yield Step.of(src=rank, dst=to, chunk=to, reduce=True)

    return Schedule("direct reduce-scatter", "reduce_scatter", ranks, ranks, steps)
