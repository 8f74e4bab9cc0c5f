"""The algorithms, each stated once: functions of the number of ranks that return a `Schedule`."""

from minidist.schedule.algorithms.bruck import bruck_all_gather, bruck_all_to_all
from minidist.schedule.algorithms.chain import chain_all_reduce, chain_broadcast
from minidist.schedule.algorithms.direct import (
    direct_all_gather,
    direct_reduce_scatter,
    pairwise_all_to_all,
    ring_shift,
)
from minidist.schedule.algorithms.double_tree import double_tree_all_reduce
from minidist.schedule.algorithms.doubling import (
    doubling_all_gather,
    halving_doubling_all_reduce,
    halving_reduce_scatter,
    recursive_doubling_all_reduce,
)
from minidist.schedule.algorithms.hierarchical import hierarchical_all_reduce
from minidist.schedule.algorithms.naive import (
    direct_gather,
    direct_scatter,
    naive_all_reduce,
    naive_broadcast,
    naive_reduce,
)
from minidist.schedule.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from minidist.schedule.algorithms.tree import (
    tree_all_reduce,
    tree_broadcast,
    tree_gather,
    tree_reduce,
    tree_scatter,
)

__all__ = [
    "bruck_all_gather",
    "bruck_all_to_all",
    "chain_all_reduce",
    "chain_broadcast",
    "direct_all_gather",
    "direct_gather",
    "direct_reduce_scatter",
    "direct_scatter",
    "double_tree_all_reduce",
    "doubling_all_gather",
    "halving_doubling_all_reduce",
    "halving_reduce_scatter",
    "hierarchical_all_reduce",
    "naive_all_reduce",
    "naive_broadcast",
    "naive_reduce",
    "pairwise_all_to_all",
    "recursive_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "ring_shift",
    "tree_all_reduce",
    "tree_broadcast",
    "tree_gather",
    "tree_reduce",
    "tree_scatter",
]
