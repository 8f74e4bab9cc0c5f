"""Gradients that travel together. Imports nothing, so that it also runs in a page of the book."""

from __future__ import annotations


def assign(nbytes: list[int], first: float, cap: float) -> list[list[int]]:
    """Buckets of gradients, as `torch.nn.parallel.DistributedDataParallel` fills them.

    Gradients arrive from the last layer to the first, so buckets are filled from the end: the first
    one until it holds at least `first` bytes, so that communication begins early, each later one
    until it holds `cap`. `nbytes` is in the order in which forward uses the parameters. Returned
    are indexes into it: `assign([4, 4, 4, 4], 4, 8)` is `[[3], [2, 1], [0]]`.
    """
    buckets: list[list[int]] = [[]]
    held = 0
    for place in range(len(nbytes)):
        index = len(nbytes) - 1 - place
        if len(buckets[-1]) > 0 and held >= (first if len(buckets) == 1 else cap):
            buckets.append([])
            held = 0
        buckets[-1].append(index)
        held += nbytes[index]
    return buckets
