"""The reader's code as a training loop uses it: a wrapped model, its optimizer, its weights."""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course.project.models import blocks
from minidist.comm.comm import Comm

LEARNING_RATE = 0.01


def nothing() -> None:
    """Nothing is left to do after backward."""


class Trained(NamedTuple):
    """A wrapped model, as a training loop uses it."""

    model: Any
    optimizer: Any
    synchronize: Callable[[], object] = nothing
    weights: Callable[[], dict[str, Tensor]] = dict  # all of them, by name

    def step(self, loss: Tensor) -> None:
        """Backward, then average, step, and zero the gradients."""
        torch.autograd.backward(loss)
        self.synchronize()
        self.optimizer.step()
        self.optimizer.zero_grad()


Kind = Callable[..., Any]  # the reader's code
Make = Callable[..., Optimizer]  # an optimizer's class: make(parameters, lr=...)
Train = Callable[..., Trained]  # train(kind, net, comm, cap_mb), and maybe another optimizer


def with_ddp(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Make = AdamW
) -> Trained:
    """A class of `ddp.py`; those that make buckets take their cap."""
    takes_cap = "bucket_cap_mb" in signature(kind).parameters
    model = kind(net, comm, *((cap_mb,) if takes_cap else ()))
    made = optimizer(net.parameters(), lr=LEARNING_RATE)
    return Trained(model, made, model.synchronize, lambda: dict(net.named_parameters()))


def with_zero(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Make = AdamW
) -> Trained:
    """An optimizer of `zero.py`, which is given parameters alone; so buffers are sent here."""
    for buffer in net.buffers():
        comm.broadcast(buffer)
    made = kind(net.parameters(), optimizer, comm, bucket_cap_mb=cap_mb, lr=LEARNING_RATE)
    return Trained(net, made, weights=lambda: dict(net.named_parameters()))


def with_zero_3(
    kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Make = AdamW
) -> Trained:
    """The wrapper of `zero3.py`."""
    model = kind(net, comm)
    return Trained(model, optimizer(model.parameters(), lr=LEARNING_RATE), weights=model.weights)


def with_fsdp(
    kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Make = AdamW, prefetch: bool = True
) -> Trained:
    """The wrapper of `fsdp.py`."""
    model = kind(net, blocks(net), comm, prefetch)

    def weights() -> dict[str, Tensor]:
        for unit in model.units:
            unit.unshard()
        return dict(net.named_parameters())

    return Trained(model, optimizer(model.shards, lr=LEARNING_RATE), model.synchronize, weights)
