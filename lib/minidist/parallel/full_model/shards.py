"""What of a model the ranks keep in shards, whatever shards it: FSDP's units or a ZeroOptimizer.

What looks at a whole model (its state dict, its gradients, their norm) asks here, and needs to know
nothing else of how a unit or an optimizer lays its tensors out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn import Parameter

from minidist.comm.comm import Comm, Ours
from minidist.parallel.ddp.ddp import DistributedDataParallel
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.fsdp.param_group import ParamGroup
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.zero.optimizer import ZeroOptimizer, holder_of


@dataclass(frozen=True)
class ShardedParams:
    """Parameters of one dtype and device, in a flat buffer of which each rank keeps a shard.

    Attributes:
        comm: between the ranks.
        parameters: as the module has them.
        shards: this rank's part of each, maybe empty, with its gradient.
        numel: elements of a rank's shard, the same number on all ranks.
        views: of a rank's shard (1-D): the part of each parameter.
        wholes: of all ranks' shards (1-D): each parameter.
    """

    comm: Comm
    parameters: Sequence[Parameter]
    shards: Sequence[Parameter]
    numel: int
    views: Callable[[torch.Tensor], list[torch.Tensor]]
    wholes: Callable[[torch.Tensor], list[torch.Tensor]]

    def gather(self, parts: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The whole tensors of which this rank has these parts; None counts as zeros.

        Every rank of `comm` must call it. They may be views of one buffer.
        """
        mine = torch.zeros(self.numel, dtype=self.shards[0].dtype, device=self.shards[0].device)
        for view, part in zip(self.views(mine), parts, strict=True):
            if part is not None:
                view.copy_(part)
        everyone = mine.new_empty(self.comm.ranks * self.numel)
        self.comm.all_gather(everyone, mine)
        return self.wholes(everyone)

    def used(self) -> list[bool]:
        """For each parameter, whether any rank's shard has a gradient; every rank must call it."""
        flags = [shard.grad is not None for shard in self.shards]
        used = torch.tensor(flags, dtype=torch.uint8, device=self.shards[0].device)
        self.comm.all_reduce(used, ReduceOp.MAX)
        return [bool(flag) for flag in used.tolist()]


def bare(module: nn.Module) -> nn.Module:
    """The module without the DDP round it, minidist's or torch's.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{whoami()}module: expected a torch.nn.Module, got a {type(module).__name__}"
        )
    if isinstance(module, DistributedDataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = module.module
        return inner
    return module


def param_groups(module: nn.Module) -> list[tuple[Unit, ParamGroup]]:
    """FSDP's; units that are unsharded are resharded first.

    Raises:
        ValueError: the module is a part of a unit.
    """
    every = units(module)
    for unit in every:
        unit.reshard()
    found = [(unit, block) for unit in every for block in unit.groups]
    there = {shard for _, block in found for shard in block.shards}
    for name, parameter in module.named_parameters():
        if isinstance(parameter, Shard) and parameter not in there:
            raise ValueError(
                f"{whoami()}module: expected all of a unit, got a part: {name} is "
                f"{parameter.title()}, which is round it"
            )
    return found


def sharded_parameters(module: nn.Module) -> Iterator[ShardedParams]:
    """Those whose values are sharded: FSDP's, a group at a time."""
    for unit, group in param_groups(module):
        layout, kept = group.layout, group.shards
        yield ShardedParams(
            unit.comm, kept, kept, layout.shard_numel, layout.pieces, layout.tensors
        )


def sharded_gradients(module: nn.Module) -> Iterator[ShardedParams]:
    """Those whose gradients are sharded: FSDP's, and a ZeroOptimizer's, which averages them now."""
    yield from sharded_parameters(module)
    for zero in zero_optimizers(module):
        if zero.gradients == "local":
            zero.average()
            for bucket in zero.buckets:
                flat = bucket.flat
                yield ShardedParams(
                    zero.comm,
                    bucket.parameters,
                    bucket.shards,
                    flat.shard_numel,
                    flat.pieces,
                    bucket.views_of,
                )


def zero_optimizers(module: nn.Module) -> list[ZeroOptimizer]:
    """The ZeroOptimizers that hold parameters of the module, in the order of these."""
    found = [holder_of(parameter) for parameter in module.parameters()]
    return list(dict.fromkeys(zero for zero in found if zero is not None))


def comms(module: nn.Module) -> list[Comm]:
    """Between whom the module, wrapped or not, is shared: one for each group; [] if nobody.

    For hybrid sharding first the ranks of a shard group, then those of a replicate group: what is
    passed on in both, one after the other, has come to all.
    """
    found: list[Comm] = []
    if isinstance(module, nn.parallel.DistributedDataParallel):
        found.append(Ours(module.process_group))
    elif isinstance(module, DistributedDataParallel):
        found.append(module.comm)
    found += (zero.comm for zero in zero_optimizers(module))
    every = units(module)
    found += (unit.comm for unit in every)
    found += (unit.replicate for unit in every if unit.replicate is not None)
    return list({comm.group: comm for comm in found}.values())


def whoami() -> str:
    """This rank, for messages; "" where there is no group of ranks."""
    there = dist.is_available() and dist.is_initialized()
    return f"rank {dist.get_rank()}: " if there else ""
