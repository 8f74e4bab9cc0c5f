"""Binomial trees: in each step twice as many ranks take part, so ceil(log2 N) steps reach them all.

Places are counted from the root. The child at place v, v an odd multiple of d, hangs on v - d.
Source of all: Thakur, Rabenseifner and Gropp (2005). N ranks, G bytes in the whole tensor.
"""

from collections.abc import Iterator

import numpy as np

from minidist.schedule.schedule import Schedule, Step


def tree_broadcast(ranks: int, *, root: int = 0) -> Schedule:
    """In each step every rank that has the tensor sends it to one that has not.

    ceil(log2 N) steps, each message the whole tensor; the root sends ceil(log2 N) G.
    """
    rank = (root + np.arange(ranks)) % ranks

    def steps() -> Iterator[Step]:
        for d in reversed(powers_of_two(ranks)):
            child = np.arange(d, ranks, 2 * d)
            yield Step.of(src=rank[child - d], dst=rank[child], chunk=0, reduce=False)

    return Schedule("tree broadcast", "broadcast", ranks, 1, steps, root)


def tree_reduce(ranks: int, *, root: int = 0) -> Schedule:
    """The broadcast backwards: pairs reduce, then pairs of pairs, towards the root.

    ceil(log2 N) steps, each message the whole tensor; the root receives ceil(log2 N) G.
    """
    return tree_broadcast(ranks, root=root).backwards("tree reduce", "reduce", reduce=True)


def tree_all_reduce(ranks: int) -> Schedule:
    """Reduce to rank 0, then the sum goes back the same way.

    2 ceil(log2 N) steps, each message the whole tensor.
    """
    return tree_reduce(ranks).then(tree_broadcast(ranks), "tree all-reduce", "all_reduce")


def powers_of_two(below: int) -> list[int]:
    return [2**level for level in range((below - 1).bit_length())]
