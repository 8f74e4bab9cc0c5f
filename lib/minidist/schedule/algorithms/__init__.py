"""The algorithms, each stated once: functions of the number of ranks that return a `Schedule`.

The tables name those that a collective takes in `algorithm=`.
"""

from minidist import errors
from minidist.schedule.algorithms.direct import (
    direct_gather,
    direct_reduce_scatter,
    direct_scatter,
    naive_all_reduce,
    naive_broadcast,
    pairwise_all_to_all,
    ring_shift,
)
from minidist.schedule.algorithms.doubling import (
    doubling_all_gather,
    halving_doubling_all_reduce,
    halving_reduce_scatter,
    recursive_doubling_all_reduce,
)
from minidist.schedule.algorithms.pipeline import chain_all_reduce, double_tree_all_reduce
from minidist.schedule.algorithms.ring import (
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from minidist.schedule.algorithms.tree import tree_all_reduce, tree_broadcast, tree_reduce
from minidist.schedule.schedule import Algorithm

ALL_REDUCE: dict[str, Algorithm] = {
    "double_tree": double_tree_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "hierarchical": hierarchical_all_reduce,
    "naive": naive_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
}
REDUCE_SCATTER: dict[str, Algorithm] = {
    "direct": direct_reduce_scatter,
    "halving": halving_reduce_scatter,
    "ring": ring_reduce_scatter,
}
ALL_GATHER: dict[str, Algorithm] = {"doubling": doubling_all_gather, "ring": ring_all_gather}

SEGMENT = 256 << 10  # bytes that a pipeline passes on at once
MOST_SEGMENTS = 64


@errors.checked
def segments(nbytes: int) -> int:
    return 1 << min(MOST_SEGMENTS, max(1, nbytes // SEGMENT)).bit_length() - 1
