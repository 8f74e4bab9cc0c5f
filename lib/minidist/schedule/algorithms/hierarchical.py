"""Rings of rings, for nodes with fast links inside and slow ones between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from minidist.errors import ScheduleError
from minidist.schedule.algorithms.ring import ring_all_gather, ring_reduce_scatter
from minidist.schedule.schedule import Schedule, Step

NAME = "hierarchical all-reduce"


def hierarchical_all_reduce(ranks: int, *, local: int) -> Schedule:
    """Three rings: reduce-scatter in each node, all-reduce across nodes, all-gather in each node.

    Ranks are numbered node by node, `local` to a node. After the first phase local rank l of each
    node holds the node's sum of one `local`-th of the tensor, and only that crosses between nodes.

    With M nodes of L ranks: 2(L - 1) + 2(M - 1) steps, each rank sends 2(N - 1)/N of the tensor, as
    in the flat ring, and 2(M - 1) tensors leave nodes, of all ranks together.
    """
    if local < 1 or ranks % local:
        raise ScheduleError(f"hierarchical: {ranks} ranks cannot be split into nodes of {local}")
    nodes = ranks // local
    rank = np.arange(ranks)
    node, place = rank // local, rank % local
    in_node = node * local + (place + 1) % local  # the next rank in this node
    across = (rank + local) % ranks  # the same place in the next node

    def inside(ring: Schedule) -> Schedule:
        def steps() -> Iterator[Step]:
            for step in ring:  # a chunk of the ring inside a node is a run of `nodes` chunks here
                yield Step.of(rank, in_node, step.chunk[place] * nodes, step.reduce[place], nodes)

        return Schedule(NAME, "all_reduce", ranks, ranks, steps, alike=ring.alike)

    def between(ring: Schedule) -> Schedule:
        def steps() -> Iterator[Step]:
            for step in ring:
                yield Step.of(rank, across, place * nodes + step.chunk[node], step.reduce[node])

        return Schedule(NAME, "all_reduce", ranks, ranks, steps, alike=ring.alike)

    phases = (
        inside(ring_reduce_scatter(local)),
        between(ring_reduce_scatter(nodes)),
        between(ring_all_gather(nodes)),
        inside(ring_all_gather(local)),
    )
    return Schedule(NAME, "all_reduce", ranks, ranks, lambda: chain(*phases), phases=phases)
