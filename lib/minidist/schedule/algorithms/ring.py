"""Rings: every rank talks to its two neighbours only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidist.schedule.schedule import Schedule, Step


# [ring-reduce-scatter]
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
def ring_all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather, in 2(N - 1) steps.

    Each rank sends 2(N - 1)/N of the tensor, the least that any all-reduce can send
    when it spreads the work evenly (Patarasuk and Yuan, 2009).
    """
    return ring_reduce_scatter(ranks).then(ring_all_gather(ranks), "ring all-reduce", "all_reduce")


# [others]
