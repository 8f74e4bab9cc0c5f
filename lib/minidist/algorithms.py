"""The algorithms, each stated once: functions of the number of ranks that return a `Schedule`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidist.schedule import Ints, Schedule, ScheduleError, Step


# [ring-reduce-scatter]
def ring_reduce_scatter(ranks: int, *, first: int = -1) -> Schedule:
    """Each chunk travels once round the ring and collects every rank's part.

    Rank r starts with chunk r + `first`. With -1 it ends with the whole sum of chunk r,
    as `dist.reduce_scatter_tensor` wants it; with 0 it ends with that of chunk r + 1.
    N - 1 steps, each rank sends one chunk a step (Patarasuk and Yuan, 2009).
    """
    rank = np.arange(_positive(ranks))

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            chunk = (rank + first - t) % ranks
            yield Step.of(src=rank, dst=(rank + 1) % ranks, chunk=chunk, reduce=True)

    return Schedule("ring reduce-scatter", "reduce_scatter", ranks, ranks, steps)


# [ring-all-gather]
def ring_all_gather(ranks: int, *, first: int = 0) -> Schedule:
    """Each chunk travels once round the ring and every rank keeps a copy.

    Rank r starts with chunk r + `first`, which it must hold whole. N - 1 steps.
    """
    rank = np.arange(_positive(ranks))

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            chunk = (rank + first - t) % ranks
            yield Step.of(src=rank, dst=(rank + 1) % ranks, chunk=chunk, reduce=False)

    return Schedule("ring all-gather", "all_gather", ranks, ranks, steps)


# [ring-all-reduce]
def ring_all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather, in 2(N - 1) steps.

    Each rank sends 2(N - 1)/N of the tensor, the least that any all-reduce can send
    when it spreads the work evenly (Patarasuk and Yuan, 2009).
    """
    gather = ring_all_gather(ranks)
    return ring_reduce_scatter(ranks).then(gather, "ring all-reduce", "all_reduce")


# [others]
def naive_all_reduce(ranks: int) -> Schedule:
    """Every rank sends its whole tensor to rank 0, one after another; rank 0 sends the sum back."""
    others = range(1, _positive(ranks))

    def steps() -> Iterator[Step]:
        for rank in others:
            yield Step.of(src=rank, dst=0, chunk=0, reduce=True)
        for rank in others:
            yield Step.of(src=0, dst=rank, chunk=0, reduce=False)

    return Schedule("naive all-reduce", "all_reduce", ranks, 1, steps)


def tree_all_reduce(ranks: int) -> Schedule:
    """A binomial tree: pairs reduce towards rank 0, then the sum goes back the same way.

    2 ceil(log2 N) steps, each message the whole tensor (Thakur, Rabenseifner and Gropp, 2005).
    """
    distances = [2**level for level in range((_positive(ranks) - 1).bit_length())]

    def children(distance: int) -> Ints:
        return np.arange(distance, ranks, 2 * distance)

    def steps() -> Iterator[Step]:
        for d in distances:
            yield Step.of(src=children(d), dst=children(d) - d, chunk=0, reduce=True)
        for d in reversed(distances):
            yield Step.of(src=children(d) - d, dst=children(d), chunk=0, reduce=False)

    return Schedule("tree all-reduce", "all_reduce", ranks, 1, steps)


def hierarchical_all_reduce(ranks: int, *, local: int) -> Schedule:
    """Three rings: reduce-scatter in each node, all-reduce across nodes, all-gather in each node.

    Ranks are numbered node by node, `local` to a node. After the first phase local rank l of each
    node holds the node's sum of one `local`-th of the tensor, and only that crosses between nodes.
    """
    if local < 1 or _positive(ranks) % local:
        raise ScheduleError(f"hierarchical: {ranks} ranks cannot be split into nodes of {local}")
    nodes = ranks // local
    rank = np.arange(ranks)
    node, place = rank // local, rank % local
    in_node = node * local + (place + 1) % local  # the next rank in this node
    across = (rank + local) % ranks  # the same place in the next node

    def inside(ring: Schedule) -> Iterator[Step]:
        for step in ring:  # a chunk of the ring inside a node is a run of `nodes` chunks here
            yield Step.of(rank, in_node, step.chunk[place] * nodes, step.reduce[place], nodes)

    def between(ring: Schedule) -> Iterator[Step]:
        for step in ring:
            yield Step.of(rank, across, place * nodes + step.chunk[node], step.reduce[node])

    def steps() -> Iterator[Step]:
        yield from inside(ring_reduce_scatter(local))
        yield from between(ring_all_reduce(nodes))
        yield from inside(ring_all_gather(local))

    return Schedule("hierarchical all-reduce", "all_reduce", ranks, ranks, steps)


def _positive(ranks: int) -> int:
    if ranks < 1:
        raise ScheduleError(f"ranks must be at least 1, got {ranks}")
    return ranks
