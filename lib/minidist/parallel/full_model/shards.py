"""What of a model the ranks keep in slices, whoever cut it: FSDP's units, or a ZeroOptimizer.

What looks at a model in full (its state dict, the norm of its gradients) asks here, and needs to
know nothing else of how a unit or a part of an optimizer lays its tensors out.
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
class Sliced:
    """Tensors of one dtype and device, laid out in a buffer of which each rank keeps a slice.

    Attributes:
        comm: between the ranks that have the slices.
        named: the parameters as the module has them.
        kept: this rank's part of each, maybe empty, with its gradient.
        numel: the elements of a slice, the same number on all ranks.
        views: of a slice (1-D): the part of each parameter.
        wholes: of all slices in the order of ranks (1-D): the whole tensor of each parameter.
    """

    comm: Comm
    named: Sequence[Parameter]
    kept: Sequence[Parameter]
    numel: int
    views: Callable[[torch.Tensor], list[torch.Tensor]]
    wholes: Callable[[torch.Tensor], list[torch.Tensor]]

    def gather(self, parts: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The whole tensors of which this rank has these parts; None counts as zeros.

        Every rank of `comm` must call it. They may be views of one buffer.
        """
        mine = torch.zeros(self.numel, dtype=self.kept[0].dtype, device=self.kept[0].device)
        for view, part in zip(self.views(mine), parts, strict=True):
            if part is not None:
                view.copy_(part)
        everyone = mine.new_empty(self.comm.ranks * self.numel)
        self.comm.all_gather(everyone, mine)
        return self.wholes(everyone)

    def used(self) -> list[bool]:
        """Whether any rank has a gradient of a parameter's part; every rank must call it."""
        flags = [part.grad is not None for part in self.kept]
        seen = torch.tensor(flags, dtype=torch.int32, device=self.kept[0].device)
        self.comm.all_reduce(seen, ReduceOp.MAX)
        return [bool(flag) for flag in seen.tolist()]


def bare(module: nn.Module) -> nn.Module:
    """The module itself if DDP's wrapper, minidist's or torch's, is round it."""
    if isinstance(module, DistributedDataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = module.module
        return inner
    return module


def blocks(module: nn.Module) -> list[tuple[Unit, ParamGroup]]:
    """FSDP's; units that are whole just now are resharded first.

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


def sharded_parameters(module: nn.Module) -> Iterator[Sliced]:
    """FSDP's, a unit's block at a time."""
    for unit, block in blocks(module):
        layout, kept = block.layout, block.shards
        yield Sliced(unit.comm, kept, kept, layout.shard_numel, layout.pieces, layout.tensors)


def sliced_gradients(module: nn.Module) -> Iterator[Sliced]:
    """FSDP's, and those that a ZeroOptimizer averages, which does so now if it has not yet."""
    yield from sharded_parameters(module)
    for zero in holders(module):
        if zero.gradients == "local":
            zero.average()
            for part in zero.parts:
                numel, pieces = part.flat.shard_numel, part.flat.pieces
                yield Sliced(zero.comm, part.parameters, part.pieces, numel, pieces, part.views)


def holders(module: nn.Module) -> list[ZeroOptimizer]:
    """The ZeroOptimizers that hold parameters of the module, in the order of these."""
    found = [holder_of(parameter) for parameter in module.parameters()]
    return list(dict.fromkeys(zero for zero in found if zero is not None))


def comms(module: nn.Module) -> list[Comm]:
    """Between whom the module, wrapped or not, is shared: one for each group; [] if nobody.

    For hybrid sharding first the ranks of a shard group, then those of a replicate group: what goes
    round both one after the other has come to all.
    """
    found: list[Comm] = []
    if isinstance(module, nn.parallel.DistributedDataParallel):
        found.append(Ours(module.process_group))
    elif isinstance(module, DistributedDataParallel):
        found.append(module.comm)
    found += (zero.comm for zero in holders(module))
    every = units(module)
    found += (unit.comm for unit in every)
    found += (unit.replicate for unit in every if unit.replicate is not None)
    return list({comm.group: comm for comm in found}.values())


def whoami() -> str:
    """This rank, for messages; "" where there is no group of ranks."""
    there = dist.is_available() and dist.is_initialized()
    return f"rank {dist.get_rank()}: " if there else ""
