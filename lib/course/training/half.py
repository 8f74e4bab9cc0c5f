"""A small model trained in bf16: exactly, in one process, and sharded."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.func import functional_call

HALF = torch.bfloat16


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The model, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)).to(dtype)


def sharded(dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model under FSDP2, which computes in bf16 and reduces in fp32."""
    model = net(dtype)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(HALF, torch.float32))
    return model


def in_half(model: nn.Module, x: Tensor) -> Tensor:
    """A forward in one process as FSDP2 makes it: on a copy of the weights, in bf16."""
    weights = {name: weight.to(HALF) for name, weight in model.named_parameters()}
    found: Tensor = functional_call(model, weights, x.to(HALF))
    return found


def twenty_steps(
    model: nn.Module,
    rows: slice = slice(None),
    forward: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x),
    scale: float = 1.0,
) -> Tensor:
    """All weights after as many steps of SGD on these rows of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    draws = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(96, 32, generator=draws)[rows]
        x = x.to(next(model.parameters()).dtype)
        loss = (forward(model, x).to(x.dtype) - x.roll(1, 1).sin()).square().mean()
        optimizer.zero_grad()
        loss.mul(scale).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    full = [
        each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()
    ]
    return torch.cat([each.detach().double().flatten() for each in full])
