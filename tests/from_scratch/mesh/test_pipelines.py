"""A pipeline in each replica."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from from_scratch.context import attention
from from_scratch.expert import Experts
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
    all_off,
    classes,
    grid,
    layers,
    loop_of,
    off,
    some_ignored,
    torch_side,
)

MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "layers": layers,
    "first half frozen": lambda: layers(frozen=range(4)),
    "a bias frozen": lambda: (net := layers(), net[2].bias.requires_grad_(False))[0],
    "tied in a rank": lambda: layers(tied=(0, 4)),  # in two of its stages
    "tied in a stage": lambda: layers(tied=(0, 1)),
    "uneven": lambda: layers(empty=(2, 3, 5)),
}


class Piped(NamedTuple):
    """A pipeline in each replica."""

    way: str = "flat"
    model: str = "layers"
    order: str = "interleaved"
    ignored: bool = False
    dtype: torch.dtype = DOUBLE
    auto: bool = False


FEW = [
    *(Piped(way) for way in ("ZeRO-1", "fully_shard")),
    Piped("flat", order="GPipe", ignored=True),
    Piped("overlapped", order="one"),
    Piped("bucketed", "first half frozen", "1F1B"),
]
MOST = [
    *(Piped(way) for way in WAYS if way not in ("ZeRO-1", "fully_shard", "overlapped")),
    *(Piped(way, order="GPipe") for way in ("ZeRO-2", "fully_shard", "ZeroOptimizer 2")),
    *(Piped("bucketed", model) for model in MODELS if model != "first half frozen"),
    *(Piped("fully_shard", model) for model in ("a bias frozen", "tied in a stage", "uneven")),
    *(Piped("ZeRO-1", model) for model in ("a bias frozen", "tied in a stage")),
    *(Piped("flat", order=order, ignored=True) for order in ("1F1B", "interleaved")),
    Piped("fully_shard", order="1F1B", ignored=True),
    *(Piped(way, dtype=HALF) for way in ("flat", "fully_shard")),
    Piped("flat", dtype=FLOAT, auto=True),
]


def piped(case: Piped, at: Grid) -> str:
    torch.manual_seed(5)
    net, works = MODELS[case.model]().to(case.dtype), ORDERS[case.order](at.ranks)
    torch.manual_seed(5)
    alone = MODELS[case.model]().to(case.dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(at.replica)  # the first replica's must win
    micro = 1 + max(m for *_, m in sequence(works))
    border = torch.empty(SAMPLES // at.replicas // micro, TOKENS, WIDE, dtype=case.dtype)
    pipeline = Pipeline(net, stages_of(works), border, at.inner.group)
    parts = nn.ModuleList(pipeline.modules.values())
    optimizer, synchronize = WAYS[case.way](parts, at.data)
    loss_of = classes if case.ignored else mse_loss

    def backward(x: Tensor, y: Tensor) -> Any:
        label = some_ignored(y) if case.ignored else y
        with torch.autocast("cpu", HALF, enabled=case.auto):
            return pipeline.step(sequence(works), x, label, loss_of)

    def forward(x: Tensor) -> None:
        for part in parts:
            part(x)

    def whole(out: Tensor, y: Tensor) -> Tensor:
        return loss_of(out, some_ignored(y) if case.ignored else y)

    own = Trained(backward, optimizer, synchronize, forward, loop=loop_of(case.way))
    tolerance = 1e-9 if case.dtype == DOUBLE else 3e-2
    return off(own, torch_side(alone, whole, case.auto), at, case.dtype, tolerance)


def test_pipelines_beside_replicas() -> None:
    assert launch(all_off, 4, piped, FEW, MOST, timeout=200) == [{}] * 4


# ---- what raises, and groups that do not fit ----

RAISED = {
    "`OverlappedDDP` around stages":
        ((4, 1), Piped("overlapped", order="GPipe"), "synchronize() after each backward"),
    "`ZeRO2` around several stages of a rank":
        ((1, 4), Piped("ZeRO-2", order="interleaved"), "a parameter was not used in this step"),
}  # fmt: skip


def raised() -> list[str]:
    said = []
    for shape, case, _ in RAISED.values():
        try:
            said.append(piped(case, grid(shape)))
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_wrappers_that_do_not_fit_micro_batches_or_stages_raise() -> None:
    for of_rank in launch(raised, 4):
        for (case, (*_, what)), said in zip(RAISED.items(), of_rank, strict=True):
            assert what in said, case


def other_group() -> list[str]:
    """What the two ranks say that are not in a group, and all to an exchange of all ranks."""
    group, rank = dist.new_group([0, 2]), dist.get_rank()
    at, x = grid((2, 2)), torch.ones(2, WIDE)
    calls: list[Callable[[], object]] = [
        lambda: Pipeline(layers(), 2, x, group),
        lambda: attention(x, x, x, group=group),
        lambda: Experts(nn.Linear(WIDE, 2), [nn.Identity()] * 2, at.inner),
    ]
    said = []
    for call in calls[2 * (rank % 2 == 0) :]:
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said


def test_another_group_is_refused() -> None:
    exchange = "exchange: expected one of comm's 2 ranks, got one of all"
    for rank, said in enumerate(launch(other_group, 4)):
        outside = [
            f"rank {rank} is not in the group",
            f"rank {rank} is not in the group",
        ]
        assert said == outside * (rank % 2) + [exchange]
