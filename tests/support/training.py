"""What a wrapper must give: the mean of all ranks' gradients, by training in one process."""

import copy
import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minidist import DistributedDataParallel

Train = Callable[[Any, int, int], object]  # train(model, rank, step) calls backward()


def quiet(model: Any) -> Any:
    """Without communication, where there is some."""
    return model.no_sync() if hasattr(model, "no_sync") else nullcontext()


def numbers(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Of this rank and step."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype)


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    bare = getattr(model, "module", model)
    return {name: parameter.grad for name, parameter in bare.named_parameters()}


def digest(model: nn.Module) -> str:
    """Of every bit of the gradients and parameters."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), parameter.grad):
            if tensor is not None:
                whole.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


class Alone:
    """All ranks' replicas in this process, averaged by hand."""

    def __init__(self, net: nn.Module) -> None:
        self.nets = [copy.deepcopy(net) for _ in range(dist.get_world_size())]

    def train(self, train: Train, step: int) -> nn.Module:
        for rank, net in enumerate(self.nets):
            train(net, rank, step)
        for same in zip(*(net.parameters() for net in self.nets), strict=True):
            found = [parameter.grad for parameter in same if parameter.grad is not None]
            mean = torch.stack(found).sum(0) / len(same) if found else None
            for parameter in same:
                parameter.grad = None if mean is None else mean.clone()
        return self.nets[0]

    def step(self, lr: float, to_none: bool) -> None:
        for net in self.nets:
            descend(net, lr, to_none)


def descend(net: nn.Module, lr: float, to_none: bool) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter -= lr * parameter.grad
    net.zero_grad(set_to_none=to_none)


def compare(
    build: Callable[[], nn.Module],
    train: Train,
    steps: int = 3,
    to_none: bool = True,
    tolerance: float = 1e-12,
    **options: Any,
) -> str:
    """What is wrong after training both ways; "" if nothing."""
    torch.manual_seed(5)
    alone = Alone(build())
    torch.manual_seed(5 + dist.get_rank())  # of which only rank 0's numbers may count
    ddp = DistributedDataParallel(build(), **options)
    for step in range(steps):
        train(ddp, dist.get_rank(), step)
        want, got = gradients(alone.train(train, step)), gradients(ddp)
        for name, right in want.items():
            mine = got[name]
            if (mine is None) != (right is None):
                return f"step {step}: {name}: {mine} instead of {right}"
            if mine is not None and not torch.allclose(mine, right, tolerance, tolerance):
                return f"step {step}: {name}: off by {(mine - right).abs().max():.2g}"
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, digest(ddp))
        if len(set(everyone)) > 1:
            return f"step {step}: the ranks' bits differ"
        descend(ddp, 0.1, to_none)
        alone.step(0.1, to_none)
    return ""
