"""A pipeline computes the gradients of one process, in any order, and moves what it must."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy, mse_loss

from course.project.messages import recorded
from from_scratch.pipeline import Pipeline
from minidist import launch
from minidist.schedule.pipeline import (
    Order,
    Work,
    dual_pipe_v,
    gpipe,
    homes,
    interleaved,
    messages,
    most_held,
    one_f_one_b,
    sequence,
    zero_bubble,
)

LAYERS, SAMPLES, WIDE = 24, 24, 5  # what up to 4 ranks, 8 stages and 8 micro-batches divide
ORDERS: dict[str, Callable[[int], Order]] = {
    "GPipe": lambda ranks: gpipe(ranks, 8),
    "1F1B": lambda ranks: one_f_one_b(ranks, 8),
    "1F1B, one micro-batch": lambda ranks: one_f_one_b(ranks, 1),
    "1F1B, fewer than ranks": lambda ranks: one_f_one_b(ranks, 2),
    "interleaved": lambda ranks: interleaved(ranks, 2 * ranks, 2),
    "zero bubble": lambda ranks: zero_bubble(ranks, 8),
    "DualPipeV": lambda ranks: dual_pipe_v(ranks, 8),
}


class Layer(nn.Linear):
    """Residual, so that neither activations nor gradients fade on their way."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x).tanh() / 4


def network() -> nn.Sequential:
    """Layers that all differ."""
    torch.manual_seed(2)
    return nn.Sequential(*(Layer(WIDE, WIDE) for _ in range(LAYERS)))


def batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, WIDE, generator=draw), torch.randn(SAMPLES, WIDE, generator=draw)


def border(micro: int) -> Tensor:
    return torch.empty(SAMPLES // micro, WIDE)


def by_one_process() -> tuple[float, list[Tensor]]:
    net, (x, y) = network(), batch()
    loss: Any = mse_loss(net(x), y)
    loss.backward()
    return loss.item(), gradients(net)


def gradients(net: nn.Module) -> list[Tensor]:
    """Of all layers; of those that are on another rank, nothing."""
    return [torch.empty(0) if p.grad is None else p.grad for p in net.parameters()]


def piped(
    works: Sequence[Work], home: Sequence[int] | None = None
) -> tuple[Any, list[Tensor], list[tuple[int, int, int]]]:
    """The loss, the gradients on this rank, and the messages from it: to whom, what, bytes."""
    micro, stages = 1 + max(m for *_, m in works), 1 + max(stage for _, stage, _ in works)
    net, (x, y) = network(), batch()
    pipeline = Pipeline(net, home or stages, border(micro))
    with recorded() as calls:
        loss = pipeline.step(works, x, y, mse_loss)
    assert [pipeline.held, pipeline.arriving] == [{}, {}]
    sent = [(dist.get_rank(), each.peer, each.nbytes) for [each] in calls if each.sends]
    return loss, gradients(net), sent


def in_any_order(stages: int, micro: int, seed: int) -> list[Work]:
    """All work, each piece after what it needs, and nothing else to go by."""
    draw, done = random.Random(seed), list[Work]()
    left = [Work(kind, s, m) for kind in "FB" for s in range(stages) for m in range(micro)]

    def can_go(work: Work) -> bool:
        kind, stage, m = work
        if kind == "F":
            return not stage or ("F", stage - 1, m) in done
        ready = stage == stages - 1 or ("B", stage + 1, m) in done
        return ready and ("F", stage, m) in done

    while left:
        done.append(draw.choice([work for work in left if can_go(work)]))
        left.remove(done[-1])
    return done


def all_piped(every: list[tuple[list[Work], list[int] | None]]) -> list[Any]:
    return [piped(*each) for each in every]


@cache
def ran(ranks: int) -> dict[str, Any]:
    """What each rank has to say of each order, and of some that have none."""
    orders = {name: order(ranks) for name, order in ORDERS.items()}
    every: dict[str, tuple[list[Work], list[int] | None]] = {
        name: (sequence(order), homes(order)) for name, order in orders.items()
    }
    every |= {f"any, {seed}": (in_any_order(2 * ranks, 4, seed), None) for seed in range(3)}
    of_orders = zip(*launch(all_piped, ranks, [*every.values()]), strict=True)
    return dict(zip(every, of_orders, strict=True))


def close(found: Tensor, right: Tensor) -> bool:
    """To a millionth of the largest."""
    return bool((found - right).abs().max() <= 1e-6 * right.abs().max())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_order_gives_the_gradients_of_one_process(ranks: int) -> None:
    loss, right = by_one_process()
    for name, of_ranks in ran(ranks).items():
        losses, found, _ = zip(*of_ranks, strict=True)
        tip = 0 if name == "DualPipeV" else ranks - 1  # the rank of the last stage
        assert [rank for rank, each in enumerate(losses) if each is not None] == [tip], name
        assert losses[tip].item() == pytest.approx(loss, rel=1e-6), name
        for number, (grads, one) in enumerate(zip(zip(*found, strict=True), right, strict=True)):
            (own,) = (each for each in grads if each.numel())  # on one rank
            assert close(own, one), (name, number)


@pytest.mark.claim("G2")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_messages_are_those_of_the_order(ranks: int) -> None:
    """One for each border and micro-batch, forward and back, and of their size."""
    for name, make in ORDERS.items():
        order, sent = make(ranks), [each for *_, own in ran(ranks)[name] for each in own]
        micro = 1 + max(work.micro for work in order[0])
        borders = [pair for pair in pairwise(homes(order)) if len({*pair}) > 1]
        both_ways = [pair for a, b in borders for pair in ((a, b), (b, a))]
        expected = [(*pair, border(micro).nbytes) for pair in both_ways for _ in range(micro)]
        assert sorted(sent) == sorted(expected)
        assert len(sent) == messages(order)


def held(order: Order) -> int:
    """The most micro-batches of which this rank keeps a graph at once."""
    micro = 8
    net, (x, y), most = network(), batch(), 0
    pipeline = Pipeline(net, homes(order), border(micro))

    def note(*_: Any) -> None:
        nonlocal most
        most = max(most, 1 + len(pipeline.held))  # with the one that comes

    for module in pipeline.modules.values():
        module.register_forward_hook(note)
    pipeline.step(sequence(order), x, y, mse_loss)
    return most


@pytest.mark.claim("G1")
def test_no_rank_holds_more_than_its_order_says() -> None:
    several = gpipe(4, 8), one_f_one_b(4, 8), interleaved(4, 8, 2)
    for order in (*several, zero_bubble(4, 8), dual_pipe_v(4, 8)):
        assert launch(held, 4, order) == most_held(order)
    assert most_held(one_f_one_b(4, 8)) == [4, 3, 2, 1]


def told() -> tuple[list[int], str]:
    """How often a rank is told that a stage fits, in two steps; and of a batch that does not."""
    pipeline, works, calls = Pipeline(network(), 4, border(4)), sequence(interleaved(2, 4, 2)), []
    for _ in range(2):
        with patch("torch.distributed.broadcast", wraps=dist.broadcast) as broadcast:
            pipeline.step(works, *batch(), mse_loss)
        calls.append(broadcast.call_count)
    alone = Pipeline(network(), 2, border(1), [*map(dist.new_group, ([0], [1]))][dist.get_rank()])
    alone.step(sequence(interleaved(1, 1, 2)), *batch(), mse_loss)
    try:
        alone.step(sequence(interleaved(1, 2, 2)), *batch(), mse_loss)
    except ValueError as error:
        return calls, str(error)
    return calls, "nothing"


def test_borders_are_told_once_and_checked_each_time() -> None:
    for calls, later in launch(told, 2):
        assert calls == [3, 0]
        assert "returns [12, 5] of torch.float32, no border" in later


# ---- beside torch's own ----

TORCH: dict[Any, Order] = {
    ScheduleGPipe: gpipe(4, 8),
    Schedule1F1B: one_f_one_b(4, 8),
    ScheduleInterleaved1F1B: interleaved(4, 8, 2),
    ScheduleDualPipeV: dual_pipe_v(4, 8),
}


def by_torch(schedule: Any, home: list[int]) -> list[Tensor]:
    rank, last = dist.get_rank(), len(home) - 1
    net, (x, y), size = network(), batch(), LAYERS // len(home)
    stages = [
        PipelineStage(net[s * size : (s + 1) * size], s, len(home), torch.device("cpu"))
        for s in range(len(home))
        if home[s] == rank
    ]
    runs = schedule(stages if len(stages) > 1 else stages[0], 8, loss_fn=mse_loss)
    given, wanted = [x] if home[0] == rank else [], {"target": y} if home[last] == rank else {}
    runs.step(*given, **wanted)
    return gradients(net)


def both() -> list[tuple[list[Tensor], list[Tensor]]]:
    return [
        (piped(sequence(order), homes(order))[1], by_torch(schedule, homes(order)))
        for schedule, order in TORCH.items()
    ]


@pytest.mark.claim("G3")
def test_gradients_are_those_of_torchs_schedules() -> None:
    for of_rank in launch(both, 4):
        for ours, theirs in of_rank:
            for own, other in zip(ours, theirs, strict=True):
                assert own.shape == other.shape
                assert not own.numel() or close(own, other)


# ---- what it refuses ----

TWO = one_f_one_b(2, 2)
REFUSED: dict[str, dict[str, Any]] = {
    "10 layers, 4 stages and 2 ranks: each has to divide the one before, and each rank has a stage":
        {"layers": 10, "stages": 4},
    "12 layers, 3 stages and 2 ranks: each has to divide the one before, and each rank has a stage":
        {"stages": 3},
    "0 layers, 2 stages and 2 ranks: each has to divide the one before, and each rank has a stage":
        {"layers": 0},
    "the order is for 2 stages, the model has 4": {"stages": 4},
    "works: expected F and B, or I and W for B, got ['B', 'F', 'G']":
        {"more": [Work("G", 0, 0)]},
    "12 layers, 2 stages and 2 ranks: each has to divide the one before, and each rank has a stage":
        {"stages": [0, 0]},
    "5 samples do not divide into 2 micro-batches": {"samples": 5},
    "0 samples do not divide into 2 micro-batches": {"samples": 0},
    "rank 0: stage 0 returns [3, 5] of torch.float32, no border [2, 5] of torch.float32":
        {"samples": 6},
    "rank 0: stage 0 returns [2, 5] of torch.float32, no border [2, 5] of torch.bfloat16":
        {"dtype": torch.bfloat16},
    "rank 1: stage 1 returns [2, 4] of torch.float32, no border [2, 5] of torch.float32":
        {"stages": 4, "order": interleaved(2, 2, 2), "odd": 5},
    "border: expected floating point, got torch.int64": {"dtype": torch.int64},
    "Gloo's isend cannot send what is on meta: use NCCL, or a CPU": {"device": "meta"},
    "rank 1 has 12 layers, 2 stages and a border of [2, 6] of torch.float32; rank 0 has 12 layers, "
    "2 stages and a border of [2, 5] of torch.float32": {"wider": 1},
    "ranks 0 and 1 share a weight of shape [5, 5]: put what shares it on one rank":
        {"tied": (0, 6)},
    "all labels of this batch are -100: there is nothing to learn from it": {"label": -100},
    "a step computes gradients, too: call it outside torch.no_grad()": {"grad": False},
}  # fmt: skip


def said(
    layers: int = 12,
    stages: int | list[int] = 2,
    order: Order = TWO,
    samples: int = 4,
    dtype: torch.dtype = torch.float32,
    odd: int = -1,
    wider: int = 0,
    tied: tuple[int, ...] = (),
    label: int = 0,
    grad: bool = True,
    device: str = "cpu",
    more: Sequence[Work] = (),
) -> str:
    net = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(layers)))
    if odd >= 0:
        net[odd] = nn.Linear(WIDE, WIDE - 1)
    for number in tied:
        net[number].weight = net[tied[0]].weight
    border = torch.empty(2, WIDE + wider * dist.get_rank(), dtype=dtype, device=device)
    x, y = torch.ones(samples, WIDE), torch.full((samples,), label)
    try:
        with torch.set_grad_enabled(grad):
            pipeline = Pipeline(net, stages, border)
            pipeline.step([*sequence(order), *more], x, y, cross_entropy)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def test_what_does_not_fit_is_refused_on_all_ranks() -> None:
    every = launch(lambda: [said(**how) for how in REFUSED.values()], 2, timeout=300)
    for of_rank in every:
        assert of_rank == list(REFUSED)
