"""Bruck's algorithms: ceil(log2 N) steps for any number of ranks, by doubling distances.

Bruck, Ho, Kipnis, Upfal and Weathersby (1997). They move the data of each rank so that a message is
one block of memory; here chunks keep their numbers, and a message may take several `Send`s.
N ranks, G bytes in the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidist.schedule.algorithms.common import positive, powers_of_two, wrapped
from minidist.schedule.schedule import Schedule, Step


def bruck_all_gather(ranks: int) -> Schedule:
    """Before distance d every rank holds d chunks from its own on, and gets the next d from r + d.

    ceil(log2 N) steps; each rank sends and receives (N - 1)/N of G, the least that is possible.
    """
    rank = np.arange(positive(ranks))

    def steps() -> Iterator[Step]:
        for d in powers_of_two(ranks):
            yield wrapped(rank, (rank - d) % ranks, rank, min(d, ranks - d), ranks)

    return Schedule("Bruck all-gather", "all_gather", ranks, ranks, steps)


def bruck_all_to_all(ranks: int) -> Schedule:
    """A block that must go k places on goes by the binary digits of k: 1, then 2, then 4, ...

    ceil(log2 N) steps. G is the bytes of all N^2 blocks, s * N + d that from s to d; for N a power
    of two each rank sends (N/2) log2 N blocks, of N - 1 in the pairwise way.
    """
    rank = np.arange(positive(ranks))

    def steps() -> Iterator[Step]:
        for d in powers_of_two(ranks):
            far = rank[(rank & d) > 0]  # the distances that have this digit
            origin, k = np.repeat(rank, len(far)), np.tile(far, ranks)
            at = (origin + k % d) % ranks  # as far as the lower digits have brought it
            block = origin * ranks + (origin + k) % ranks
            yield Step.of(src=at, dst=(at + d) % ranks, chunk=block, reduce=False)

    return Schedule("Bruck all-to-all", "all_to_all", ranks, ranks**2, steps)
