"""Collectives of ranks on one host through memory that all of them see, without any message.

Each rank has a segment that the others map too. To reduce, a rank copies its tensor into its own
segment, reduces *its* chunk by reading that chunk in every peer's segment, and copies the other
chunks out of the segments of those who reduced them: a reduce-scatter and an all-gather in which
nobody sends. GPUs of one node do the same over NVLink, where it is called symmetric memory.

[Note: one barrier a block] A tensor goes through in blocks that stay in the cache. Who has passed
the barrier of a block knows that all have copied it in, and that all have copied the block before
the last one out. So three buffers in turn are enough, and one barrier for each block.
"""

import torch
import torch.distributed as dist

from minidist.collectives.runtime.reduction import Reduce
from minidist.collectives.shared_memory.segments import BLOCK, SharedSegments, shared_segments
from minidist.schedule.schedule import bounds

SMALL = 1 << 18  # up to so many bytes every rank reduces everything: one barrier instead of two


def shared_all_reduce(flat: torch.Tensor, reduce: Reduce, group: dist.ProcessGroup | None) -> None:
    """Reduce `flat` (1-D, contiguous, on the CPU) over the ranks of the group, in place.

    Every rank gets the same bits: a chunk is reduced by one rank, or by all in the same order.
    """
    shared = shared_segments(group)
    if flat.nbytes <= SMALL:
        views = shared.views(flat.dtype, len(flat))
        views[shared.rank].copy_(flat)
        shared.barrier()
        flat.copy_(views[0])
        for segment in views[1:]:
            reduce(flat, segment)
        return
    before: tuple[torch.Tensor, list[torch.Tensor]] | None = None
    size = BLOCK // flat.element_size()
    for start in range(0, len(flat), size):
        block = flat[start : start + size]
        low, high = bounds(len(block), shared.ranks)[shared.rank : shared.rank + 2].tolist()
        views = shared.views(block.dtype, len(block))
        own, mine = views[shared.rank], block[low:high]
        own[:low].copy_(block[:low])
        own[high:].copy_(block[high:])
        shared.barrier()
        if before:
            _copy_out(shared, *before)
        for peer in shared.peers:
            reduce(mine, views[peer][low:high])
        own[low:high].copy_(mine)
        before = block, views
    shared.barrier()
    if before:
        _copy_out(shared, *before)


def _copy_out(shared: SharedSegments, block: torch.Tensor, views: list[torch.Tensor]) -> None:
    edge = bounds(len(block), shared.ranks).tolist()
    for peer in shared.peers:
        chunk = slice(edge[peer], edge[peer + 1])
        block[chunk].copy_(views[peer][chunk])


def shared_reduce_scatter(
    output: torch.Tensor, flat: torch.Tensor, reduce: Reduce, group: dist.ProcessGroup | None
) -> None:
    """Reduce `flat`, N parts one after another; rank r gets the r-th in `output`, both 1-D."""
    shared = shared_segments(group)
    parts = flat.view(shared.ranks, -1)
    step = max(1, BLOCK // (shared.ranks * flat.element_size()))
    for low in range(0, len(output), step):
        block = parts[:, low : low + step]
        views = shared.views(flat.dtype, block.numel())
        views[shared.rank].view(block.shape).copy_(block)
        shared.barrier()
        mine = output[low : low + step]
        mine.copy_(block[shared.rank])
        for peer in shared.peers:
            reduce(mine, views[peer].view(block.shape)[shared.rank])


def shared_all_gather(
    output: torch.Tensor, flat: torch.Tensor, group: dist.ProcessGroup | None
) -> None:
    """Collect every rank's `flat` in `output`, in the order of ranks, both 1-D."""
    shared = shared_segments(group)
    parts = output.view(shared.ranks, -1)
    step = BLOCK // flat.element_size()
    for low in range(0, len(flat), step):
        block = flat[low : low + step]
        views = shared.views(flat.dtype, len(block))
        views[shared.rank].copy_(block)
        shared.barrier()
        for rank, segment in enumerate(views):
            parts[rank, low : low + step].copy_(segment)
