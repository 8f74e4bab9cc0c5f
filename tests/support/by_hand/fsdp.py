"""Parts of FSDP by hand, as a learner may write them: right, and wrong in the typical ways.

They run on the ranks, so this module imports little.
"""

from typing import Any

import torch
import torch.distributed as dist

import minidist
from minidist.comm.comm import Comm


def gather(shard: torch.Tensor, comm: Comm) -> torch.Tensor:
    whole = shard.new_empty(len(shard) * comm.ranks)
    comm.all_gather(whole, shard)
    return whole


def scatter(gradient: torch.Tensor, comm: Comm) -> torch.Tensor:
    own = gradient.new_empty(len(gradient) // comm.ranks)
    comm.reduce_scatter(own, gradient / comm.ranks)
    return own


def all_reduced(gradient: torch.Tensor, comm: Comm) -> torch.Tensor:
    """Right, at twice the bytes."""
    gradient = gradient / comm.ranks
    comm.all_reduce(gradient)
    return gradient.chunk(comm.ranks)[comm.rank].clone()


def gathered(gradient: torch.Tensor, comm: Comm) -> torch.Tensor:
    """Right, by everything that all ranks have."""
    everyones = gather(gradient, comm).view(comm.ranks, comm.ranks, -1)
    return everyones[:, comm.rank].mean(0)


def around_comm(gradient: torch.Tensor, comm: Comm) -> torch.Tensor:
    own = gradient.new_empty(len(gradient) // comm.ranks)
    minidist.reduce_scatter_tensor(own, gradient / comm.ranks)
    return own


def in_halves(gradient: torch.Tensor, comm: Comm) -> torch.Tensor:
    parts = gradient.view(comm.ranks, -1).split([2, len(gradient) // comm.ranks - 2], dim=1)
    return torch.cat([scatter(part.contiguous().flatten(), comm) for part in parts])


def unit(*, gather: Any = gather, scatter: Any = scatter) -> Any:
    def my_unit(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
        whole = gather(shard, comm)
        forward(whole)
        del whole
        whole = gather(shard, comm)
        gradient = backward(whole)
        del whole
        return scatter(gradient, comm)

    return my_unit


def by_lists(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
    """The right result by torch's own collectives."""

    def whole() -> torch.Tensor:
        parts = [torch.empty_like(shard) for _ in range(comm.ranks)]
        dist.all_gather(parts, shard)
        return torch.cat(parts)

    forward(whole())
    return scatter(backward(whole()), comm)


def never_resharded(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
    whole = gather(shard, comm)
    forward(whole)
    return scatter(backward(whole), comm)


KEPT: list[torch.Tensor] = []


def kept_for_later(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
    forward(gather(shard, comm))
    whole = gather(shard, comm)
    KEPT.append(whole)
    return scatter(backward(whole), comm)


def copied(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
    """Gathers once, and keeps a copy for backward."""
    whole = gather(shard, comm)
    copy = whole.clone()
    forward(whole)
    del whole
    return scatter(backward(copy), comm)


def from_rank_0_only(shard: torch.Tensor, forward: Any, backward: Any, comm: Comm) -> Any:
    return unit()(shard, forward, backward, comm) if comm.rank == 0 else shard


# ---- the global norm ----


def squares(gradients: Any) -> torch.Tensor:
    there = [each.square().sum() for each in gradients if each is not None]
    return torch.stack([torch.zeros(()), *there]).sum()


def total(number: torch.Tensor, comm: Comm) -> torch.Tensor:
    comm.all_reduce(number)
    return number


def norm(gradients: Any, comm: Comm) -> torch.Tensor:
    return total(squares(gradients), comm).sqrt()


def one_by_one(gradients: Any, comm: Comm) -> torch.Tensor:
    """Right, in a call for each part."""
    return torch.stack([total(squares([each]), comm) for each in gradients]).sum().sqrt()


def norm_gathered(gradients: Any, comm: Comm) -> torch.Tensor:
    """Right, by what all ranks have."""
    return gather(squares(gradients).view(1), comm).sum().sqrt()


def norm_by_torch(gradients: Any, comm: Comm) -> torch.Tensor:
    own = squares(gradients)
    dist.all_reduce(own)
    return own.sqrt()


def norm_without_none(gradients: Any, comm: Comm) -> torch.Tensor:
    return total(sum(each.square().sum() for each in gradients), comm).sqrt()


def norm_of_two(gradients: Any, comm: Comm) -> torch.Tensor:
    """Right on two ranks: the other one's squares are those that the average lacks."""
    own = squares(gradients)
    minidist.ring_shift(theirs := own.clone())
    return (own + theirs).sqrt()


def norm_of_norms(gradients: Any, comm: Comm) -> float:
    """Another right way."""
    parts = [each.norm() for each in gradients if each is not None] or [torch.zeros(())]
    return float(total(torch.stack(parts).norm() ** 2, comm) ** 0.5)
