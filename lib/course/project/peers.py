"""Counterparts in minidist and torch, with which the project's scoreboard compares."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.futures import Future
from torch.optim import AdamW

import minidist
from course.project.models import blocks
from course.project.trained import LEARNING_RATE, Train, Trained
from minidist.comm.comm import Comm, Pending


def minidist_ddp(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """DDP of minidist."""
    model = minidist.DistributedDataParallel(net, comm=comm, bucket_cap_mb=cap_mb)
    return Trained(model, AdamW(net.parameters(), LEARNING_RATE))


def torch_ddp(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """DDP of torch, whose buckets go through `comm` by a communication hook."""
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap_mb)
    model.register_comm_hook(comm, lambda _, bucket: _all_reduce(comm, bucket.buffer()))
    return Trained(model, AdamW(net.parameters(), LEARNING_RATE))


def _all_reduce(comm: Comm, flat: Tensor) -> Future[Tensor]:
    """Average a bucket; torch waits for the future."""
    flat, future = flat.div_(comm.ranks), Future[Tensor]()
    work = comm.all_reduce(flat, async_op=True)
    assert work is not None

    def wait() -> None:
        work.wait()
        future.set_result(flat)

    threading.Thread(target=wait).start()
    return future


def minidist_zero(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """ZeRO of minidist, with gradients sharded."""
    more: dict[str, Any] = {"stage": 2, "comm": comm, "bucket_cap_mb": cap_mb}
    optimizer = minidist.ZeroOptimizer(net.parameters(), AdamW, lr=LEARNING_RATE, **more)
    return Trained(net, optimizer)


def torch_zero(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """ZeRO-1 of torch: its DDP, and its optimizer, whose broadcasts go through `comm` too."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of what it imports

    class OverComm(ZeroRedundancyOptimizer):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            with patch.object(dist, "broadcast", broadcast):
                return super().step(*args, **kwargs)

    def broadcast(tensor: Tensor, src: int, group: object, async_op: bool) -> Pending:
        return comm.broadcast(tensor, src, async_op)

    ddp = torch_ddp(None, net, comm, cap_mb)
    return ddp._replace(optimizer=OverComm(net.parameters(), AdamW, lr=LEARNING_RATE))


def minidist_fsdp(_: object, net: nn.Module, comm: Comm, __: float) -> Trained:
    """FSDP of minidist."""
    return _sharded(net, partial(minidist.fully_shard, comm=comm))


def torch_fsdp(_: object, net: nn.Module, comm: Comm, __: float) -> Trained:
    """FSDP2 of torch, whose collectives it lets us replace. On a CPU each of them blocks."""

    def shard(module: nn.Module) -> Any:
        unit: Any = fully_shard(module)
        unit.set_custom_all_gather(_Collective(comm.all_gather))
        unit.set_custom_reduce_scatter(_Collective(comm.reduce_scatter))
        return unit

    return _sharded(net, shard)


class _Collective(NamedTuple):
    """One of a comm's calls, as FSDP2 takes it."""

    call: Callable[..., Pending]

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what FSDP2 sends or receives."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, op: Any = None, **_: object
    ) -> None:
        """Make the call, and wait."""
        self.call(output_tensor, input_tensor, *(() if op is None else (op,)))


def _sharded(net: nn.Module, shard: Callable[[nn.Module], Any]) -> Trained:
    for block in reversed(blocks(net)[1:]):  # inner ones before the outer ones
        shard(block)
    model = shard(net)
    return Trained(model, AdamW(model.parameters(), LEARNING_RATE))


PEERS: dict[str, dict[str, Train]] = {
    "ddp": {"minidist": minidist_ddp, "torch": torch_ddp},
    "zero": {"minidist": minidist_zero, "torch": torch_zero},
    "zero3": {"minidist": minidist_fsdp, "torch": torch_fsdp},
    "fsdp": {"minidist": minidist_fsdp, "torch": torch_fsdp},
}
