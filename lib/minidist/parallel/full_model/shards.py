"""What of a model the ranks keep in shards, whatever shards it: FSDP's units or a ZeroOptimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn import Parameter

from minidist.comm.comm import Comm, Ours
from minidist.parallel.ddp.ddp import DistributedDataParallel
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.zero.optimizer import ZeroOptimizer, holder_of


@dataclass(frozen=True)
class ShardedParams:
    """Parameters of one dtype and device, in a flat buffer of which each rank keeps a shard."""

    comm: Comm  # between the ranks
    parameters: Sequence[Parameter]  # as the module has them
    shards: Sequence[Parameter]  # this rank's part of each, maybe empty, with its gradient
    numel: int  # of a rank's shard, the same number on all ranks
    views: Callable[[torch.Tensor], list[torch.Tensor]]  # of a rank's shard: its part of each
    wholes: Callable[[torch.Tensor], list[torch.Tensor]]  # of all ranks' shards: each parameter

    def gather(self, parts: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The whole tensors of which this rank has these parts; None counts as zeros."""
        mine = torch.zeros(self.numel, dtype=self.shards[0].dtype, device=self.shards[0].device)
        for view, part in zip(self.views(mine), parts, strict=True):
            if part is not None:
                view.copy_(part)
        everyone = mine.new_empty(self.comm.ranks * self.numel)
        self.comm.all_gather(everyone, mine)
        return self.wholes(everyone)

    def used(self) -> list[bool]:
        """For each parameter, whether any rank's shard has a gradient."""
        flags = [shard.grad is not None for shard in self.shards]
        used = torch.tensor(flags, dtype=torch.uint8, device=self.shards[0].device)
        self.comm.all_reduce(used, ReduceOp.MAX)
        return [bool(flag) for flag in used.tolist()]


def bare(module: nn.Module) -> nn.Module:
    """The module without the DDP round it, minidist's or torch's; TypeError if it is none."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{whoami()}module: expected a torch.nn.Module, got a {type(module).__name__}"
        )
    wrapped = isinstance(module, DistributedDataParallel | nn.parallel.DistributedDataParallel)
    return cast("nn.Module", module.module) if wrapped else module


def sharded_parameters(module: nn.Module) -> list[ShardedParams]:
    """Those whose values are sharded: FSDP's, resharded first; ValueError for a part of a unit."""
    found: list[ShardedParams] = []
    for unit in units(module):
        unit.reshard()
        for group in unit.groups:
            kept, form = group.shards, group.layout
            views = form.shard_numel, form.pieces, form.tensors
            found.append(ShardedParams(unit.comm, kept, kept, *views))
    there = {shard for params in found for shard in params.shards}
    for name, parameter in module.named_parameters():
        if isinstance(parameter, Shard) and parameter not in there:
            raise ValueError(
                f"{whoami()}module: expected all of a unit, got a part: {name} is "
                f"{parameter.title()}, which is round it"
            )
    return found


def sharded_gradients(module: nn.Module) -> list[ShardedParams]:
    """Those whose gradients are sharded: FSDP's, and a ZeroOptimizer's, which averages them now."""
    found = sharded_parameters(module)
    for zero in zero_optimizers(module):
        if zero.gradients == "local":
            zero.average()
            for bucket in zero.buckets:
                views = bucket.flat.shard_numel, bucket.flat.pieces, bucket.views_of
                found.append(ShardedParams(zero.comm, bucket.parameters, bucket.shards, *views))
    return found


def zero_optimizers(module: nn.Module) -> list[ZeroOptimizer]:
    """The ZeroOptimizers that hold parameters of the module, in the order of these."""
    found = [holder_of(parameter) for parameter in module.parameters()]
    return list(dict.fromkeys(zero for zero in found if zero is not None))


def comms(module: nn.Module) -> list[Comm]:
    """Between whom the module is shared, one for each group; of hybrid sharding the shards' first.

    So what is passed on in one group after the other comes to all.
    """
    found: list[Comm] = []
    if isinstance(module, nn.parallel.DistributedDataParallel):
        found.append(Ours(module.process_group))
    elif isinstance(module, DistributedDataParallel):
        found.append(module.comm)
    found += (zero.comm for zero in zero_optimizers(module))
    found += (unit.comm for unit in units(module))
    found += (unit.replicate for unit in units(module) if unit.replicate)
    return list({comm.group: comm for comm in found}.values())


def whoami() -> str:
    """This rank, for messages; "" where there is no group of ranks."""
    there = dist.is_available() and dist.is_initialized()
    return f"rank {dist.get_rank()}: " if there else ""
