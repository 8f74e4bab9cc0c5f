"""The strategies: each wraps the same model and makes what updates it, and the loop is the same.

What a strategy keeps on a rank is described by `Part`s, of which checkpoints are made: whatever
lies where, a rank keeps of a parameter one range of its elements, in the order of memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW

from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from minidist.memory.state import Strategy
from minidist.parallel.ddp.ddp import DistributedDataParallel
from minidist.parallel.fsdp.fully_shard import fully_shard
from minidist.parallel.full_model.full_model import clip_grad_norm_
from minidist.parallel.zero.optimizer import ZeroOptimizer
from minidist.train.gpt import GPT
from minidist.train.options import Options


class Part(NamedTuple):
    """This rank's part of a parameter: its elements from `start` on, as many as there are."""

    parameter: Tensor  # the one that the optimizer steps on
    start: int
    shape: torch.Size  # that of the full parameter


@dataclass
class Wrapped:
    """A model and its optimizer, as the loop uses them."""

    model: nn.Module
    optimizer: AdamW | ZeroOptimizer
    accumulating: Callable[[], AbstractContextManager[Any]]  # around a backward that sends nothing
    parts: Callable[[], dict[str, Part]]
    state: dict[Any, Any]  # moments in the optimizer that has the parts' parameters
    comms: Sequence[Counted] = ()  # none: PyTorch's backend does not report what it sends
    casts: bool = False  # True if it casts to `precision` itself: the loop does not autocast
    clip: Callable[[nn.Module, float], Tensor] = clip_grad_norm_
    loaded: Callable[[], object] = lambda: None  # called when the parts have been read


def single(net: GPT, options: Options, device: torch.device) -> Wrapped:
    return replicated(net, options, net)


def ddp(net: GPT, options: Options, device: torch.device) -> Wrapped:
    """A replica on each rank; backward averages the gradients."""
    comm = counted()
    return replicated(net, options, DistributedDataParallel(net, comm=comm), [comm])


def torch_ddp(net: GPT, options: Options, device: torch.device) -> Wrapped:
    return replicated(net, options, nn.parallel.DistributedDataParallel(net))


def replicated(
    net: GPT, options: Options, model: nn.Module, comms: Sequence[Counted] = ()
) -> Wrapped:
    """All of every parameter and its state on each rank; `model` is the net, or a DDP around it."""
    optimizer = AdamW(net.parameters(), options.lr)
    parts = {name: Part(each, 0, each.shape) for name, each in net.named_parameters()}
    accumulating = getattr(model, "no_sync", nullcontext)
    return Wrapped(model, optimizer, accumulating, lambda: parts, optimizer.state, comms)


def zero(net: GPT, options: Options, device: torch.device, stage: int) -> Wrapped:
    """Each rank has 1/N of the optimizer's state, and in stage 2 of the gradients."""
    comm = counted()
    how: dict[str, Any] = {"stage": stage, "gradients": "local", "comm": comm}
    optimizer = ZeroOptimizer(net.parameters(), AdamW, lr=options.lr, **how)

    def parts() -> dict[str, Part]:
        names = {parameter: name for name, parameter in net.named_parameters()}
        return {
            names[parameter]: Part(shard, bucket.ranges[parameter][0], parameter.shape)
            for bucket in optimizer.buckets
            for parameter, shard in zip(bucket.parameters, bucket.shards, strict=True)
        }

    def gather() -> None:  # every rank has the full parameters
        for bucket in optimizer.buckets:
            comm.all_gather(bucket.buffer, bucket.shard)

    state = optimizer.inner.state
    return Wrapped(net, optimizer, optimizer.no_sync, parts, state, [comm], loaded=gather)


def fsdp(net: GPT, options: Options, device: torch.device, kept: bool = False) -> Wrapped:
    """Each rank has 1/N of everything; a block's weights are gathered when it runs.

    `kept`: and stay until backward has used them.
    """
    comm = counted()
    how = partial(fully_shard, comm=comm, reshard_after_forward=not kept)
    return sharded(net, options, how, [comm])


def hsdp(net: GPT, options: Options, device: torch.device) -> Wrapped:
    """Shards within a row of ranks, replicas of them from row to row."""
    shape = dist.get_world_size() // options.shard, options.shard
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    comms = counted(mesh.get_group("replicate")), counted(mesh.get_group("shard"))
    return sharded(net, options, partial(fully_shard, comm=comms), comms)


def torch_fsdp(net: GPT, options: Options, device: torch.device) -> Wrapped:
    from torch.distributed.fsdp import fully_shard as torchs  # slow to import

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    wrapped = sharded(net, options, partial(torchs, mesh=mesh), [])
    wrapped.clip = lambda model, norm: torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
    return wrapped


def sharded(
    net: GPT, options: Options, shard: Callable[..., Any], comms: Sequence[Counted]
) -> Wrapped:
    """Each block is a unit, and the model one more, with all the rest."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    low = torch.bfloat16 if options.precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(low, torch.float32)
    for block in net.blocks:
        shard(block, mp_policy=policy)
    model = shard(net, mp_policy=policy)

    @contextmanager
    def accumulating() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    optimizer = AdamW(model.parameters(), options.lr)
    comm = comms[-1] if comms else Ours()
    parts = partial(row_parts, model, comm.ranks, comm.rank)
    return Wrapped(model, optimizer, accumulating, parts, optimizer.state, comms, casts=True)


def counted(group: dist.ProcessGroup | None = None) -> Counted:
    """Rings alone: `auto` measures what is fastest, and another algorithm gives other last bits."""
    return Counted(Ours(group, algorithm="ring"))


def row_parts(model: nn.Module, ranks: int, rank: int) -> dict[str, Part]:
    """Rows of each parameter, dealt out as by minidist's and PyTorch's FSDP."""
    parts = {}
    for name, each in model.named_parameters():
        shape = getattr(each, "whole_shape", each.shape)  # a DTensor has the full shape itself
        start = min(-(-shape[0] // ranks) * rank, shape[0]) * shape[1:].numel()
        parts[name] = Part(each, start, shape)
    return parts


WRAP: dict[str, Callable[[GPT, Options, torch.device], Wrapped]] = {
    Strategy.SINGLE: single,
    Strategy.DDP: ddp,
    Strategy.ZERO1: partial(zero, stage=1),
    Strategy.ZERO2: partial(zero, stage=2),
    Strategy.FSDP_KEPT: partial(fsdp, kept=True),
    Strategy.FSDP: fsdp,
    Strategy.HSDP: hsdp,
    "torch-ddp": torch_ddp,
    "torch-fsdp": torch_fsdp,
}
