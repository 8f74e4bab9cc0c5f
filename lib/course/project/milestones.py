"""The project's milestones: what to write, in which file, and how a training loop uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course.project.models import blocks
from minidist.comm.comm import Comm

RATE = 0.01


def nothing() -> None:
    """Nothing is left to do after backward."""


class Trained(NamedTuple):
    """What a training loop has of a wrapped model."""

    model: Any
    optimizer: Any
    synchronize: Callable[[], object] = nothing
    weights: Callable[[], dict[str, Tensor]] = dict  # all of them, by name

    def step(self, loss: Tensor, after_backward: Callable[[], object] = nothing) -> None:
        """Backward, then average, step, and zero the gradients."""
        torch.autograd.backward(loss)
        after_backward()
        self.synchronize()
        self.optimizer.step()
        self.optimizer.zero_grad()


Kind = Callable[..., Any]  # what the reader writes
Make = Callable[..., Optimizer]  # of an optimizer: make(parameters, lr=...)
Train = Callable[..., Trained]  # train(kind, net, comm, cap_mb), and maybe another optimizer


def with_ddp(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Make = AdamW
) -> Trained:
    """A class of `ddp.py`; those that make buckets take their cap."""
    takes_cap = "bucket_cap_mb" in signature(kind).parameters
    model = kind(net, comm, *((cap_mb,) if takes_cap else ()))
    made = optimizer(net.parameters(), lr=RATE)
    return Trained(model, made, model.synchronize, lambda: dict(net.named_parameters()))


def with_zero(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Make = AdamW
) -> Trained:
    """An optimizer of `zero.py`."""
    made = kind(net.parameters(), optimizer, comm, bucket_cap_mb=cap_mb, lr=RATE)
    return Trained(net, made, weights=lambda: dict(net.named_parameters()))


def with_zero_3(
    kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Make = AdamW
) -> Trained:
    """The wrapper of `zero3.py`."""
    model = kind(net, comm)
    return Trained(model, optimizer(model.parameters(), lr=RATE), weights=model.weights)


def with_fsdp(
    kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Make = AdamW, prefetch: bool = True
) -> Trained:
    """The wrapper of `fsdp.py`."""
    model = kind(net, blocks(net), comm, prefetch)

    def weights() -> dict[str, Tensor]:
        for unit in model.units:
            unit.unshard()
        return dict(net.named_parameters())

    return Trained(model, optimizer(model.shards, lr=RATE), model.synchronize, weights)


@dataclass(frozen=True)
class Milestone:
    """One thing to write."""

    name: str
    file: str  # in which it stands, without `.py`
    target: str  # its class
    train: Train  # wraps a model with it; buckets have a cap, in MiB
    moved: int  # bytes that all ranks send in a step, over (N - 1) times those of the model
    lean: bool = False  # whether the task asks for the least memory
    overlap: float = 0.0  # the share of `from_scratch`'s that is enough, as ways to overlap differ


MILESTONES = [
    Milestone("DDP, per parameter", "ddp", "PerParameterDDP", with_ddp, 2, lean=True),
    Milestone("DDP, flat", "ddp", "FlatDDP", with_ddp, 2),
    Milestone("DDP, bucketed", "ddp", "BucketedDDP", with_ddp, 2, overlap=0.9),
    Milestone("DDP, overlapped", "ddp", "OverlappedDDP", with_ddp, 2, overlap=0.9),
    Milestone("ZeRO-1", "zero", "ZeRO1", with_zero, 2, lean=True),
    Milestone("ZeRO-2", "zero", "ZeRO2", with_zero, 2, lean=True, overlap=0.75),
    Milestone("ZeRO-3", "zero3", "ZeRO3", with_zero_3, 2),
    Milestone("FSDP", "fsdp", "FSDP", partial(with_fsdp, prefetch=False), 3, lean=True),
    Milestone("FSDP, prefetch", "fsdp", "FSDP", with_fsdp, 3, lean=True, overlap=0.75),
]


def by_name(name: str) -> Milestone:
    """The milestone of this name."""
    names = [each.name for each in MILESTONES]
    if name not in names:
        raise ValueError(f"no milestone {name!r}; there are 'ring' and {names}")
    return MILESTONES[names.index(name)]
