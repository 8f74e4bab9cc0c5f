"""Collectives of ranks on one host through memory that all of them see, without any message.

Each rank has a segment that the others map too. To reduce, a rank copies its tensor into its own
segment, reduces *its* chunk by reading that chunk in every peer's segment, and copies the other
chunks out of the segments of those who reduced them: a reduce-scatter and an all-gather in which
nobody sends. GPUs of one node do the same over NVLink, where it is called symmetric memory.

[Note: one barrier a block] A tensor goes through in blocks that stay in the cache. Who has passed
the barrier of a block knows that all have copied it in, and that all have copied the block before
the last one out. So three buffers in turn are enough, and one barrier for each block.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from minidist.collectives.shared_memory.segments import BLOCK, Arena, arena_of
from minidist.schedule.schedule import bounds

SMALL = 1 << 18  # up to so many bytes every rank reduces everything: one barrier instead of two

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


# [all-reduce]
def all_reduce(flat: torch.Tensor, reduce: Reduce, group: dist.ProcessGroup | None) -> None:
    """Reduce `flat` (1-D, contiguous, on the CPU) over the ranks of the group, in place.

    Every rank gets the same bits: a chunk is reduced by one rank, or by all in the same order.
    """
    arena = arena_of(group)
    if flat.nbytes <= SMALL:
        _all_reduce_small(arena, flat, reduce)
        return
    before: tuple[torch.Tensor, list[torch.Tensor]] | None = None
    size = BLOCK // flat.element_size()
    for start in range(0, len(flat), size):
        block = flat[start : start + size]
        low, high = bounds(len(block), arena.ranks)[arena.rank : arena.rank + 2].tolist()
        segments = arena.segments(block.dtype, len(block))
        own, mine = segments[arena.rank], block[low:high]
        own[:low].copy_(block[:low])
        own[high:].copy_(block[high:])
        arena.barrier()
        if before:
            _copy_out(arena, *before)
        for peer in arena.peers:
            reduce(mine, segments[peer][low:high])
        own[low:high].copy_(mine)
        before = block, segments
    arena.barrier()
    if before:
        _copy_out(arena, *before)


def _copy_out(arena: Arena, block: torch.Tensor, segments: list[torch.Tensor]) -> None:
    edge = bounds(len(block), arena.ranks).tolist()
    for peer in arena.peers:
        chunk = slice(edge[peer], edge[peer + 1])
        block[chunk].copy_(segments[peer][chunk])


def _all_reduce_small(arena: Arena, flat: torch.Tensor, reduce: Reduce) -> None:
    segments = arena.segments(flat.dtype, len(flat))
    segments[arena.rank].copy_(flat)
    arena.barrier()
    flat.copy_(segments[0])
    for segment in segments[1:]:
        reduce(flat, segment)


# [halves]
def reduce_scatter(
    output: torch.Tensor, flat: torch.Tensor, reduce: Reduce, group: dist.ProcessGroup | None
) -> None:
    """Reduce `flat`, N parts one after another; rank r gets the r-th in `output`, both 1-D."""
    arena = arena_of(group)
    parts = flat.view(arena.ranks, -1)
    step = max(1, BLOCK // (arena.ranks * flat.element_size()))
    for low in range(0, len(output), step):
        block = parts[:, low : low + step]
        segments = arena.segments(flat.dtype, block.numel())
        segments[arena.rank].view(block.shape).copy_(block)
        arena.barrier()
        mine = output[low : low + step]
        mine.copy_(block[arena.rank])
        for peer in arena.peers:
            reduce(mine, segments[peer].view(block.shape)[arena.rank])


def all_gather(output: torch.Tensor, flat: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Collect every rank's `flat` in `output`, in the order of ranks, both 1-D."""
    arena = arena_of(group)
    parts = output.view(arena.ranks, -1)
    step = BLOCK // flat.element_size()
    for low in range(0, len(flat), step):
        block = flat[low : low + step]
        segments = arena.segments(flat.dtype, len(block))
        segments[arena.rank].copy_(block)
        arena.barrier()
        for rank, segment in enumerate(segments):
            parts[rank, low : low + step].copy_(segment)
