"""Split layers in each replica, or in each stage of a pipeline."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from from_scratch.pipeline import Pipeline
from minidist import launch
from minidist.schedule.pipeline import sequence, stages_of
from tests.from_scratch.mesh import (
    DOUBLE,
    FLOAT,
    HALF,
    ORDERS,
    SAMPLES,
    TOKENS,
    WAYS,
    WIDE,
    Grid,
    Trained,
    Whole,
    all_off,
    halves,
    loop_of,
    off,
    sgd,
    split_halves,
    torch_side,
)


class Cut(NamedTuple):
    """Split layers in each replica, or in each stage."""

    way: str = "flat"
    model: str = "blocks"
    by_tokens: bool = False
    order: str = "interleaved"
    dtype: torch.dtype = DOUBLE
    auto: bool = False


FEW = [
    Cut("overlapped"),
    Cut("ZeRO-1", "tied", by_tokens=True),
    Cut("fully_shard", "a block twice"),
    Cut("flat", "frozen", by_tokens=True),
]
MOST = [
    *(Cut(way, "tied") for way in ("bucketed", "ZeRO-2", "ZeroOptimizer 1", "fully_shard")),
    *(Cut("overlapped", each, True) for each in ("norms tied", "a block twice")),
    Cut(dtype=HALF),
    Cut(dtype=FLOAT, auto=True),
]


def own_tokens(each: Tensor, at: Grid, by_tokens: bool) -> Tensor:
    return each.chunk(at.ranks, 1)[at.rank] if by_tokens else each


def cut(case: Cut, at: Grid) -> str:
    net = split_halves(case.model, 4, at.inner, case.by_tokens).to(case.dtype)
    optimizer, synchronize = WAYS[case.way](nn.ModuleList([net]), at.data)

    def backward(x: Tensor, y: Tensor) -> Tensor:
        x, y = (own_tokens(each, at, case.by_tokens) for each in (x, y))
        with torch.autocast("cpu", HALF, enabled=case.auto):
            loss = mse_loss(net(x), y)
        (loss / (at.ranks if case.by_tokens else 1)).backward()
        return loss.detach()

    def forward(x: Tensor) -> None:
        net(own_tokens(x, at, case.by_tokens))

    own = Trained(backward, optimizer, synchronize, forward, loop=loop_of(case.way))
    alone = torch_side(halves(Whole, case.model, 4).to(case.dtype), mse_loss, case.auto)
    return off(own, alone, at, case.dtype, 1e-9 if case.dtype == DOUBLE else 3e-2)


FEW_STAGED = [Cut(order=order, by_tokens=order != "1F1B") for order in ("1F1B", "interleaved")]
MOST_STAGED = [
    *(Cut(order=order, by_tokens=order != "one") for order in ("GPipe", "one")),
    *(Cut(model=model, order="1F1B") for model in ("tied", "frozen")),
    Cut(dtype=HALF, by_tokens=True),
    Cut(dtype=FLOAT, auto=True),
]


def staged(case: Cut, at: Grid) -> str:
    """A pipeline in each column, of layers that are split in each row."""
    net = split_halves(case.model, 8, at.inner, case.by_tokens).to(case.dtype)
    works, scale = ORDERS[case.order](at.replicas), at.ranks if case.by_tokens else 1
    micro = 1 + max(m for *_, m in sequence(works))
    border = torch.empty(SAMPLES // micro, TOKENS // scale, WIDE, dtype=case.dtype)
    pipeline = Pipeline(net, stages_of(works), border, at.data.group)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return mse_loss(out, y) / scale

    def backward(x: Tensor, y: Tensor) -> Any:
        x, y = (own_tokens(each, at, case.by_tokens) for each in (x, y))
        with torch.autocast("cpu", HALF, enabled=case.auto):
            loss = pipeline.step(sequence(works), x, y, loss_of)
        return loss if loss is None else loss * scale

    own = Trained(backward, sgd(pipeline.parameters()))
    alone = torch_side(halves(Whole, case.model, 8).to(case.dtype), mse_loss, case.auto)
    tolerance = 1e-9 if case.dtype == DOUBLE else 3e-2
    return off(own, alone, at._replace(replica=0, replicas=1), case.dtype, tolerance)


def test_split_layers_beside_replicas() -> None:
    assert launch(all_off, 4, cut, FEW, MOST, timeout=200) == [{}] * 4


def test_split_layers_in_stages() -> None:
    assert launch(all_off, 4, staged, FEW_STAGED, MOST_STAGED, timeout=200) == [{}] * 4
