"""The names of the algorithms, as collectives take them in `algorithm=`."""

from __future__ import annotations

from minidist.schedule import algorithms
from minidist.schedule.program import Algorithm

ALL_REDUCE: dict[str, Algorithm] = {
    "double_tree": algorithms.double_tree_all_reduce,
    "halving_doubling": algorithms.halving_doubling_all_reduce,
    "hierarchical": algorithms.hierarchical_all_reduce,
    "naive": algorithms.naive_all_reduce,
    "recursive_doubling": algorithms.recursive_doubling_all_reduce,
    "ring": algorithms.ring_all_reduce,
    "tree": algorithms.tree_all_reduce,
}
REDUCE_SCATTER: dict[str, Algorithm] = {
    "direct": algorithms.direct_reduce_scatter,
    "halving": algorithms.halving_reduce_scatter,
    "ring": algorithms.ring_reduce_scatter,
}
ALL_GATHER: dict[str, Algorithm] = {
    "bruck": algorithms.bruck_all_gather,
    "direct": algorithms.direct_all_gather,
    "doubling": algorithms.doubling_all_gather,
    "ring": algorithms.ring_all_gather,
}
BROADCAST: dict[str, Algorithm] = {
    "chain": algorithms.chain_broadcast,
    "naive": algorithms.naive_broadcast,
    "tree": algorithms.tree_broadcast,
}
REDUCE: dict[str, Algorithm] = {
    "naive": algorithms.naive_reduce,
    "tree": algorithms.tree_reduce,
}
GATHER: dict[str, Algorithm] = {
    "direct": algorithms.direct_gather,
    "tree": algorithms.tree_gather,
}
SCATTER: dict[str, Algorithm] = {
    "direct": algorithms.direct_scatter,
    "tree": algorithms.tree_scatter,
}
SEGMENT = 256 << 10  # bytes that a pipeline passes on at once
MOST_SEGMENTS = 64


def segments(nbytes: int) -> int:
    """Into how many a pipeline cuts a tensor of `nbytes`: a power of two."""
    return 1 << min(MOST_SEGMENTS, max(1, nbytes // SEGMENT)).bit_length() - 1
