"""A chain of ranks as a pipeline: while one segment goes on, the next one comes in.

The linear pipeline that Sanders, Speck and Träff (2009) compare their two trees with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidist.schedule.algorithms.common import pipelined
from minidist.schedule.schedule import Schedule, Step


def chain_all_reduce(ranks: int, *, segments: int = 1) -> Schedule:
    """Sums grow along the chain to rank 0; each comes back while later segments are on their way.

    2(N - 1) + S - 1 steps of G/S for S segments of a tensor of G bytes; each rank inside the chain
    sends 2G, once up and once down, and no message is smaller for there being more ranks.
    """
    rank = np.arange(ranks)
    up = np.arange(ranks - 1)
    src = np.concatenate((rank[1:], rank[:-1]))
    dst = np.concatenate((rank[:-1], rank[1:]))
    start = np.concatenate((up[::-1], ranks - 1 + up))
    both = Step.of(src, dst, chunk=0, reduce=np.arange(len(src)) < len(up))

    def steps() -> Iterator[Step]:
        return pipelined(both, start, segments)

    return Schedule("chain all-reduce", "all_reduce", ranks, segments, steps)
