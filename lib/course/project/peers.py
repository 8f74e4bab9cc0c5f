"""What minidist and torch have for the same work: the project's scoreboard compares with them."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn
from torch.futures import Future
from torch.optim import AdamW

import minidist
from course.project.milestones import RATE, Train, Trained, nothing
from course.project.models import blocks, groups
from minidist.comm.comm import Comm


def minidist_ddp(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """DDP of minidist."""
    model = minidist.DistributedDataParallel(net, comm=comm, bucket_cap_mb=cap_mb)
    return Trained(model, AdamW(groups(net), RATE), nothing, lambda: dict(net.named_parameters()))


def torch_ddp(_: object, net: nn.Module, comm: Comm, cap_mb: float) -> Trained:
    """DDP of torch, whose buckets go through `comm` by a communication hook."""
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap_mb)
    model.register_comm_hook(comm, lambda _, bucket: _all_reduce(comm, bucket.buffer()))
    return Trained(model, AdamW(groups(net), RATE), nothing, lambda: dict(net.named_parameters()))


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
    optimizer = minidist.ZeroOptimizer(groups(net), AdamW, lr=RATE, **more)
    return Trained(net, optimizer, nothing, lambda: dict(net.named_parameters()))


def minidist_fsdp(_: object, net: nn.Module, comm: Comm, __: float) -> Trained:
    """FSDP of minidist."""
    for block in reversed(blocks(net)[1:]):  # inner ones before the outer ones
        minidist.fully_shard(block, comm=comm)
    model = minidist.fully_shard(net, comm=comm)
    return Trained(model, AdamW(model.parameters(), RATE), nothing, dict)


PEERS: dict[str, dict[str, Train]] = {
    "ddp": {"minidist": minidist_ddp, "torch": torch_ddp},
    "zero": {"minidist": minidist_zero},
    "zero3": {"minidist": minidist_fsdp},
    "fsdp": {"minidist": minidist_fsdp},
}
