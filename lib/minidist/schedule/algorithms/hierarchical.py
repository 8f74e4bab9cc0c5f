"""Rings of rings, for nodes with fast links inside and slow ones between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from minidist.errors import ScheduleError
from minidist.schedule.algorithms.ring import ring_all_gather, ring_reduce_scatter
from minidist.schedule.schedule import Ints, Schedule, Step

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

    def rings(ring: Schedule, to: Ints, member: Ints, first: Ints | int, width: int) -> Schedule:
        """Each rank is a `member` of a ring of its own; its chunks are runs from `first` on."""

        def steps() -> Iterator[Step]:
            for step in ring:
                chunk = first + step.chunk[member] * width
                yield Step.of(rank, to, chunk, step.reduce[member], width)

        return Schedule(NAME, "all_reduce", ranks, ranks, steps, alike=ring.alike)

    phases = (
        rings(ring_reduce_scatter(local), in_node, place, 0, nodes),
        rings(ring_reduce_scatter(nodes), across, node, place * nodes, 1),
        rings(ring_all_gather(nodes), across, node, place * nodes, 1),
        rings(ring_all_gather(local), in_node, place, 0, nodes),
    )
    return Schedule(NAME, "all_reduce", ranks, ranks, lambda: chain(*phases), phases=phases)
