"""Models and strategies whose memory is predicted and measured. They run on the ranks."""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import minidist
from course.training.models import GPT
from minidist.memory.activations import saved
from minidist.memory.meter import Curve, Meter
from minidist.memory.predict import STRATEGIES, RankBytes, predict
from minidist.memory.state import StateBytes, held
from tests.proof.cases import wrapped

CAP = 0.002  # MiB of a part: even a small model has several


class Odd(nn.Module):
    """Sizes that divide by nothing, a single number, and a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 11)
        self.middle = nn.Sequential(nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 5, bias=False))
        self.last = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.middle(self.first(x).tanh())) * self.scale
        return output


def wrap(
    net: nn.Module, strategy: str, units: list[str], cap: float, kind: Any, options: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer under a strategy."""
    parts = [net.get_submodule(unit) for unit in units]
    way = {"zero1": "zero 1 on ddp", "zero2": "zero 2"}.get(strategy, strategy)
    made = wrapped(net, way, None, partial(kind, **options), cap, units=[*parts, net])
    return made.model, made.optimizer


OPTIMIZERS = {
    "adam": (torch.optim.AdamW, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


def states(
    dtype: torch.dtype, optimizers: list[str]
) -> dict[tuple[str, str], tuple[StateBytes, StateBytes]]:
    """On a rank: (strategy, optimizer) → the state as predicted, and as held after two steps."""
    found = {}
    for strategy in STRATEGIES:
        for name in optimizers:
            kind, options = OPTIMIZERS[name]
            units = ["middle", "last"]
            torch.manual_seed(0)
            net = Odd().to(dtype)
            predicted = predict(
                net,
                dist.get_world_size(),
                strategy,
                rank=dist.get_rank(),
                optimizer=name,
                units=units,
                bucket_cap_mb=CAP,
            )
            model, optimizer = wrap(net, strategy, units, CAP, kind, options)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(4, 7, dtype=dtype)).square().mean().backward()
                optimizer.step()
            found[strategy, name] = predicted.state, held(model, optimizer)
    return found


VOCAB, WIDTH, LAYERS, TIME = 64, 64, 5, 32


class Step(NamedTuple):
    """One training step of a small GPT on one rank."""

    predicted: RankBytes
    beside: int  # bytes that are no part of the prediction: the input, and counters of steps
    curve: Curve


def step(strategy: str, batch: int = 4) -> Step:
    """Train a small GPT, and record a step of it."""
    minidist.barrier()  # lets go of what the last call of the case before held
    meter = Meter()
    torch.manual_seed(0)
    net = GPT(VOCAB, WIDTH, LAYERS, heads=4, context=TIME)
    ids = torch.randint(VOCAB, (batch, TIME + 1))

    def loss(model: nn.Module) -> torch.Tensor:
        return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    units = [f"blocks.{i}" for i in range(LAYERS)]
    cap = 0.1
    activations = saved(partial(loss, net), [*net.parameters(), ids])
    predicted = predict(
        net,
        dist.get_world_size(),
        strategy,
        rank=dist.get_rank(),
        activations=activations,
        units=units,
        bucket_cap_mb=cap,
    )
    model, optimizer = wrap(net, strategy, units, cap, torch.optim.Adam, {})
    del net

    def train() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    for _ in range(2):
        train()
    counters = sum(4 for kept in optimizer.state.values() if "step" in kept)
    curve = meter.curve(train)
    return Step(predicted, ids.nbytes + counters, Curve(curve.points, curve.spans))


def steps(cases: list[str]) -> dict[str, Step]:
    """On a rank, after one that nobody looks at: the first messages take memory for good."""
    step(cases[0], batch=1)
    return {case: step(case) for case in cases}
