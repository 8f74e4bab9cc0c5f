"""Rings, in which every rank talks to its two neighbours only; and rings of rings."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from minidist.errors import ScheduleError, checked
from minidist.schedule.schedule import Ints, Schedule, Step


# [ring-reduce-scatter]
@checked
def ring_reduce_scatter(ranks: int, *, first: int = -1) -> Schedule:
    """Each chunk travels once round the ring and collects every rank's part.

    Rank r starts with chunk r + `first`. With -1 it ends with the whole sum of chunk r,
    as `dist.reduce_scatter_tensor` wants it; with 0 it ends with that of chunk r + 1.
    N - 1 steps, each rank sends one chunk a step (Patarasuk and Yuan, 2009).
    """
    rank = np.arange(ranks)

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            chunk = (rank + first - t) % ranks
            yield Step.of(src=rank, dst=(rank + 1) % ranks, chunk=chunk, reduce=True)

    return Schedule("ring reduce-scatter", "reduce_scatter", ranks, ranks, steps, alike=ranks - 1)


# [ring-all-gather]
@checked
def ring_all_gather(ranks: int, *, first: int = 0) -> Schedule:
    """Each chunk travels once round the ring and every rank keeps a copy.

    Rank r starts with chunk r + `first`, which it must hold whole. N - 1 steps.
    """
    rank = np.arange(ranks)

    def steps() -> Iterator[Step]:
        for t in range(ranks - 1):
            chunk = (rank + first - t) % ranks
            yield Step.of(src=rank, dst=(rank + 1) % ranks, chunk=chunk, reduce=False)

    return Schedule("ring all-gather", "all_gather", ranks, ranks, steps, alike=ranks - 1)


# [ring-all-reduce]
@checked
def ring_all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather, in 2(N - 1) steps.

    Each rank sends 2(N - 1)/N of the tensor, the least that any all-reduce can send
    when it spreads the work evenly (Patarasuk and Yuan, 2009).
    """
    return ring_reduce_scatter(ranks).then(ring_all_gather(ranks), "ring all-reduce", "all_reduce")


# [others]
@checked
def hierarchical_all_reduce(ranks: int, *, local: int) -> Schedule:
    """Three rings: reduce-scatter in each node, all-reduce across nodes, all-gather in each node.

    Ranks are numbered node by node, `local` to a node. After the first phase local rank l of each
    node holds the node's sum of one `local`-th of the tensor, and only that crosses between nodes.

    With M nodes of L ranks: 2(L - 1) + 2(M - 1) steps, each rank sends 2(N - 1)/N of the tensor, as
    in the flat ring, and 2(M - 1) tensors leave nodes, of all ranks together.
    """
    name = "hierarchical all-reduce"
    if local < 1 or ranks % local:
        raise ScheduleError(f"hierarchical: {ranks} ranks cannot be split into nodes of {local}")
    nodes = ranks // local
    rank = np.arange(ranks)
    node, place = rank // local, rank % local
    in_node = node * local + (place + 1) % local  # the next rank in this node
    across = (rank + local) % ranks  # the same place in the next node

    def rings(ring: Schedule, to: Ints, member: Ints, first: Ints | int, width: int) -> Schedule:
        def steps() -> Iterator[Step]:
            for step in ring:
                chunk = first + step.chunk[member] * width
                yield Step.of(rank, to, chunk, step.reduce[member], width)

        return Schedule(name, "all_reduce", ranks, ranks, steps, alike=ring.alike)

    phases = (
        rings(ring_reduce_scatter(local), in_node, place, 0, nodes),
        rings(ring_reduce_scatter(nodes), across, node, place * nodes, 1),
        rings(ring_all_gather(nodes), across, node, place * nodes, 1),
        rings(ring_all_gather(local), in_node, place, 0, nodes),
    )
    return Schedule(name, "all_reduce", ranks, ranks, lambda: chain(*phases), phases=phases)
