"""Sequences that are split in each replica."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention

from from_scratch.context import attention, split
from minidist import Ours, launch
from tests.from_scratch.mesh import (
    DOUBLE,
    FLOAT,
    HALF,
    HEAD,
    WAYS,
    WIDE,
    Grid,
    Trained,
    all_off,
    classes,
    off,
    some_ignored,
    torch_side,
)


class Heads(nn.Module):
    """Attention with the three matrices in one, and a way to compute it."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.attend, self.norm = attend, nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, -1, HEAD)).movedim(-4, -2)
        return x + self.out(self.attend(*heads.unbind(1)).transpose(-2, -3).flatten(-2))


class Ringed(NamedTuple):
    """Sequences split in each replica."""

    way: str = "flat"
    zigzag: bool = True
    model: str = "heads"
    ignored: bool = False
    dtype: torch.dtype = DOUBLE
    auto: bool = False


FEW = [Ringed("overlapped"), Ringed("ZeRO-1", zigzag=False), Ringed(ignored=True)]
MOST = [
    *(Ringed("fully_shard", zigzag) for zigzag in (False, True)),
    *(Ringed(model=model) for model in ("frozen", "twice", "tied")),
    Ringed(zigzag=False, ignored=True),
    Ringed(dtype=HALF),
    Ringed(dtype=FLOAT, auto=True),
]


def attentive(model: str, attend: Callable[..., Any], dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(8)
    net = nn.Sequential(*(Heads(attend) for _ in range(2)))
    if model == "frozen":
        net[0].qkv.requires_grad_(False)
        net[1].out.weight.requires_grad_(False)
    elif model == "tied":
        net[1].out.weight = net[0].out.weight
    elif model == "twice":
        net.append(net[0])
    return net.to(dtype)


def ringed(case: Ringed, at: Grid) -> str:
    """Weights are on all ranks alike, whose gradients are averaged over all of them."""
    group, world = at.inner.group, Ours(check=False)
    attend = partial(attention, zigzag=case.zigzag, group=group)
    net = attentive(case.model, attend, case.dtype)
    optimizer, synchronize = WAYS[case.way](nn.ModuleList([net]), world)

    def label(y: Tensor) -> Tensor:
        return some_ignored(y) if case.ignored else y

    def loss_of(out: Tensor, y: Tensor, labels: int) -> Tensor:
        """Of the replica's labels, so many times as much as its rank has a part of them."""
        if not case.ignored:
            return mse_loss(out, y)
        return cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / labels

    def backward(x: Tensor, y: Tensor) -> Tensor:
        y = label(y)
        labels = int((y != -100).sum())
        columns = y[..., None] if case.ignored else y
        x, y = (split(each, case.zigzag, group) for each in (x, columns))
        with torch.autocast("cpu", HALF, enabled=case.auto):
            loss = loss_of(net(x), y[..., 0] if case.ignored else y, labels)
        loss = loss * (at.ranks if case.ignored else 1)
        loss.backward()
        return loss.detach()

    def whole(out: Tensor, y: Tensor) -> Tensor:
        return classes(out, label(y)) if case.ignored else mse_loss(out, y)

    def forward(x: Tensor) -> None:
        net(split(x, case.zigzag, group))

    causal = partial(scaled_dot_product_attention, is_causal=True)
    own = Trained(backward, optimizer, synchronize, forward)
    alone = torch_side(attentive(case.model, causal, case.dtype), whole, case.auto)
    return off(own, alone, at, case.dtype, 1e-9 if case.dtype == DOUBLE else 3e-2)


def test_split_sequences_beside_replicas() -> None:
    assert launch(all_off, 4, ringed, FEW, MOST, timeout=200) == [{}] * 4
