"""The first milestone: a ring all-reduce on nothing but send and receive."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from course.graders.verdict import Wrong


def check_ring(module: ModuleType) -> None:
    """On a rank: compare the module's collectives with sums of what every rank draws.

    Raises:
        Wrong: a result is not what it must be.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17):
        every = [_draw(r, numel) for r in range(ranks)]
        tensor = every[rank].clone()
        module.all_reduce(tensor)
        _compare(f"all_reduce of {numel} elements", tensor, torch.stack(every).sum(0))
    tables = torch.stack([_draw(r, ranks, 3) for r in range(ranks)])
    mine, right = tables[rank], tables.sum(0)[rank]
    before, part, whole = mine.clone(), mine.new_empty(3), mine.new_empty(ranks, 3)
    module.reduce_scatter(part, mine)
    _compare("reduce_scatter", part, right)
    _compare("reduce_scatter's input afterwards", mine, before)
    own = torch.full((3,), float(rank)).double()
    module.all_gather(whole, own)
    _compare("all_gather", whole, torch.arange(ranks).double()[:, None].expand(-1, 3))


def _draw(rank: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).double()


def _compare(what: str, found: Tensor, right: Tensor) -> None:
    if not torch.allclose(found, right):
        raise Wrong(
            f"{what} gives {found.flatten().tolist()}, expected {right.flatten().tolist()}."
        )
