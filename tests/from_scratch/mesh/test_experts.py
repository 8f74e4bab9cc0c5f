"""Experts in each replica."""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot

from from_scratch.expert import Experts, balance
from minidist import Ours, launch
from tests.from_scratch.mesh import (
    DOUBLE,
    FLOAT,
    HALF,
    SAMPLES,
    TOKENS,
    WAYS,
    WIDE,
    Grid,
    Layer,
    Trained,
    all_off,
    loop_of,
    off,
    sgd,
)

EXPERTS = 8


class Mixed(NamedTuple):
    """Experts in each replica.

    Attributes:
        tokens: which part of the replica's the first rank has: equally many, most or all.
        popular: an expert that all tokens go to.
    """

    way: str = "flat"
    top_k: int = 2
    capacity: int | None = None
    tokens: str = "even"
    popular: int = -1
    frozen: Any = ()
    twice: bool = False
    dtype: torch.dtype = DOUBLE
    auto: bool = False


FEW = [
    Mixed("overlapped", tokens="most", capacity=3),
    Mixed("ZeRO-1", tokens="all"),
    Mixed(popular=0, top_k=1),
]
MOST = [
    *(Mixed(way) for way in ("flat", "ZeRO-2", "ZeroOptimizer 1")),
    *(Mixed(tokens=tokens, capacity=30) for tokens in ("even", "all")),
    Mixed("overlapped", popular=7, top_k=1, tokens="all"),
    Mixed("bucketed", frozen=(0, 1, 4, 5)),
    Mixed(twice=True),
    Mixed(dtype=HALF),
    Mixed(dtype=FLOAT, auto=True),
]


def mixture(case: Mixed) -> tuple[nn.Linear, nn.ModuleList]:
    torch.manual_seed(9)
    router, experts = (
        nn.Linear(WIDE, EXPERTS),
        nn.ModuleList(Layer(WIDE, WIDE) for _ in range(EXPERTS)),
    )
    if case.popular >= 0:
        router.bias.data[case.popular] = 50.0
    for number in case.frozen:
        experts[number].requires_grad_(False)
    if case.twice:
        experts[1] = experts[0]
    return router.to(case.dtype), experts.to(case.dtype)


def shares(each: Tensor, ranks: int, tokens: str) -> tuple[Tensor, ...]:
    """What each rank has of the rows of a replica."""
    rows = each.flatten(0, 1)
    if tokens == "even":
        return rows.chunk(ranks)
    others = [int(tokens == "most")] * (ranks - 1)
    return rows.split([len(rows) - sum(others), *others])


def dense(
    router: nn.Module, experts: Any, x: Tensor, top_k: int, capacity: int | None
) -> tuple[Tensor, Tensor]:
    """All experts on all tokens, of which each token takes what it has chosen."""
    probability = router(x).softmax(-1)
    gates, choices = probability.topk(top_k)
    chosen = one_hot(choices.flatten(), EXPERTS)
    taken = (chosen * (chosen.cumsum(0) <= (capacity or len(chosen)))).view(-1, top_k, EXPERTS)
    weights = (gates[..., None] * taken).sum(1)
    outputs = torch.stack([expert(x) for expert in experts], 1)
    return (weights[..., None] * outputs).sum(1), balance(probability, chosen)


class Both(NamedTuple):
    """Optimizers as one."""

    each: list[Any]

    def step(self) -> None:
        for optimizer in self.each:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad()


def mixed(case: Mixed, at: Grid) -> str:
    """Experts' gradients are sums over a row, and averaged over a column."""
    router, experts = mixture(case)
    exchange = partial(dist.all_to_all_single, group=at.inner.group)
    layer = Experts(router, experts, at.inner, case.top_k, case.capacity, exchange)
    for parameter in layer.experts.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient / at.ranks)
    ways = [
        WAYS[case.way](nn.ModuleList([layer.router]), Ours(check=False)),
        WAYS[case.way](layer.experts, at.data),
    ]
    alone, every = mixture(case)
    count = at.replicas * at.ranks

    def loss_of(out: Tensor, y: Tensor, level: Tensor) -> Tensor:
        """So many times a rank's part of the batch's loss as there are ranks."""
        whole = SAMPLES * TOKENS * WIDE / count
        return (out - y).double().square().sum() / whole + 0.1 * level.double()

    def backward(x: Tensor, y: Tensor) -> Tensor:
        x, y = (shares(each, at.ranks, case.tokens)[at.rank] for each in (x, y))
        with torch.autocast("cpu", HALF, enabled=case.auto):
            out = layer(x)
        loss = loss_of(out, y, layer.balance)
        loss.backward()
        return loss.detach()

    def forward(x: Tensor) -> None:
        layer(shares(x, at.ranks, case.tokens)[at.rank])

    def whole(x: Tensor, y: Tensor) -> Tensor:
        """Rank by rank."""
        parts = [
            part
            for both in zip(x.chunk(at.replicas), y.chunk(at.replicas), strict=True)
            for part in zip(*(shares(each, at.ranks, case.tokens) for each in both), strict=True)
        ]
        with torch.autocast("cpu", HALF, enabled=case.auto):
            outs = [dense(alone, every, part, case.top_k, case.capacity) for part, _ in parts]
        losses = [loss_of(out, y, level) for (out, level), (_, y) in zip(outs, parts, strict=True)]
        loss = torch.stack(losses).mean()
        loss.backward()
        return loss.detach()

    optimizers = Both([way[0] for way in ways if way[0]])
    own = Trained(
        backward,
        optimizers,
        lambda: [way[1]() for way in ways],
        forward,
        loop=loop_of(case.way),
    )
    right = Trained(whole, sgd([*alone.parameters(), *every.parameters()]))
    return off(own, right, at, case.dtype, 1e-9 if case.dtype == DOUBLE else 3e-2)


def test_experts_beside_replicas() -> None:
    assert launch(all_off, 4, mixed, FEW, MOST, timeout=200) == [{}] * 4
