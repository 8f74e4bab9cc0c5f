"""Other ways to spend the budget: each of the library's strategies as a run of the capstone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import minidist
from course.chapters.capstone.answers import hybrid
from course.chapters.capstone.cluster import Cluster
from course.chapters.capstone.task import RATE

Wrap = Callable[[Any, Cluster], tuple[Any, Any]]


class Run(hybrid.Run):
    """A run that differs from the others in what `wrap` returns, a model and its optimizer."""

    def __init__(self, wrap: Wrap, net: Any, cluster: Cluster) -> None:
        self.cluster = cluster
        self.net, self.optimizer = wrap(net, cluster)


def ddp(net: Any, cluster: Cluster) -> tuple[Any, Any]:
    """A replica on each rank."""
    model = minidist.DistributedDataParallel(net, comm=cluster.world)
    return model, torch.optim.AdamW(net.parameters(), RATE)


def zero(stage: int, net: Any, cluster: Cluster) -> tuple[Any, Any]:
    """The optimizer's state sharded over all ranks, and in stage 2 the gradients too."""
    how: dict[str, Any] = {"stage": stage, "gradients": "local", "comm": cluster.world}
    return net, minidist.ZeroOptimizer(net.parameters(), torch.optim.AdamW, lr=RATE, **how)


def fsdp(reshard: bool, net: Any, cluster: Cluster) -> tuple[Any, Any]:
    """All sharded over all ranks; without `reshard` weights stay whole until backward."""
    for module in [*net.blocks, net]:
        minidist.fully_shard(module, comm=cluster.world, reshard_after_forward=reshard)
    return net, torch.optim.AdamW(net.parameters(), RATE)


WAYS: dict[str, Callable[[Any, Cluster], Any]] = {
    "ddp": partial(Run, ddp),
    "zero1": partial(Run, partial(zero, 1)),
    "zero2": partial(Run, partial(zero, 2)),
    "fsdp_kept": partial(Run, partial(fsdp, False)),
    "fsdp": partial(Run, partial(fsdp, True)),
    "hsdp": hybrid.Run,
}
