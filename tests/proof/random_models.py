"""Random models, cut at random, trained at random: attacks that nobody has thought of.

A model is a tree, of modules that take and return [..., 3] in float64. Seeds tell what it is, which
of its modules are units, how a step goes, and how it is sharded; the same seed tells the same.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import Linear, Parameter
from torch.optim import Adam, AdamW
from torch.utils.checkpoint import checkpoint

from minidist.comm.native import Native
from minidist.comm.ours import Ours
from tests.proof import attacks
from tests.proof.attacks import Attack, Live
from tests.proof.models import Model

WIDTH = 3
COMMS = [Ours, Native, partial(Ours, algorithm="ring"), partial(Ours, algorithm="shared_memory")]


# ---- leaves ----


def two_layers(dice: random.Random) -> nn.Module:
    """By some other width; either may be frozen."""
    width = dice.randint(1, 7)
    up = Linear(WIDTH, width, bias=dice.random() < 0.7)
    down = Linear(width, WIDTH, bias=dice.random() < 0.7)
    for layer in (up, down):
        layer.requires_grad_(dice.random() < 0.8)
    return Model(lambda net, x: net.down(torch.tanh(net.up(x))), up=up, down=down)


def scale(dice: random.Random) -> nn.Module:
    """A number or a vector, a matrix that lies transposed in memory, and something empty."""
    by = torch.randn(dice.choice([(), (1,), (WIDTH,), (1, WIDTH)]))
    none = torch.randn(dice.choice([(0,), (0, 2), (2, 0)]))
    tensors = {"by": by, "none": none, "turned": torch.randn(WIDTH, WIDTH).t()}
    parts = {name: Parameter(tensor) for name, tensor in tensors.items()}
    return Model(lambda net, x: (x * net.by) @ net.turned + net.none.sum(), **parts)


def tied(dice: random.Random) -> nn.Module:
    """A matrix that two layers have."""
    one, two = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH, bias=False)
    two.weight = one.weight
    return Model(lambda net, x: net.two(torch.tanh(net.one(x))), one=one, two=two)


class Sometimes(nn.Module):
    """Parameters of which each rank uses others, others in each turn, and one that no one does."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.table = nn.ParameterList([torch.randn(WIDTH) for _ in range(dice.randint(2, 5))])
        self.never = Parameter(torch.randn(2))
        self.at = 0  # the step sets it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[self.at % len(self.table)]


# ---- inner nodes: a child, called in some way; several children ----


AROUND: list[Callable[[nn.Module, torch.Tensor], torch.Tensor]] = [
    lambda child, x: child(x),
    lambda child, x: x + child(x),
    lambda child, x: child(torch.tanh(child(x))),
    lambda child, x: child(x) - child(-x),
    lambda child, x: child(x=x),
    lambda child, x: checkpoint(child, x, use_reentrant=False),
    lambda child, x: child(x).mul_(1.5),
    lambda child, x: child(x.detach()) + x,
]


def around(dice: random.Random, make: Callable[[], nn.Module]) -> nn.Module:
    """Perhaps with a parameter of its own."""
    child, how = make(), dice.choice(AROUND)
    own = Parameter(torch.randn(WIDTH)) if dice.random() < 0.5 else 1
    return Model(lambda net, x: how(net.child, x) * net.own, child=child, own=own)


def in_a_row(net: Any, x: torch.Tensor) -> torch.Tensor:
    for part in net.parts:
        x = torch.tanh(part(x))
    return x


MANY: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [
    in_a_row,
    lambda net, x: sum(part(x) for part in net.parts),  # type: ignore[return-value]
    lambda net, x: torch.stack([torch.tanh(part(x)) for part in net.parts]).prod(0),
    lambda net, x: [part(x) for part in net.parts][0],  # noqa: RUF015  nothing uses the others
]


def many(dice: random.Random, make: Callable[[], nn.Module]) -> nn.Module:
    parts = nn.ModuleList(make() for _ in range(dice.randint(2, 3)))
    return Model(dice.choice(MANY), parts=parts)


def tree(dice: random.Random, depth: int = 3) -> nn.Module:
    """A random tree of modules."""
    smaller = partial(tree, dice, depth - 1)
    if depth and dice.random() < (0.9 if depth > 1 else 0.5):
        return dice.choice([around, many])(dice, smaller)
    return dice.choice([two_layers, two_layers, scale, tied, Sometimes])(dice)


def units(seed: int, net: nn.Module) -> list[nn.Module]:
    """Which modules are units, besides the whole: inner ones first."""
    dice = random.Random(seed + 1)
    inner = [part for part in net.modules() if isinstance(part, Model)]
    often = dice.choice([0.0, 0.3, 0.6, 1.0])
    return [part for part in reversed(inner) if dice.random() < often]


STEPS = [
    Live.backwards,
    attacks.accumulated,
    attacks.quietly,
    attacks.loud_and_quiet,
    Live.two_in_one,
    Live.two_and_two,
    Live.retained,
    Live.looks_between,
    Live.never_backward,
    Live.with_inputs,
    Live.none_between,
]
OPTIMIZERS = [
    attacks.MOMENTUM,
    partial(Adam, lr=0.01, amsgrad=True),
    partial(AdamW, lr=0.01, weight_decay=0.1, foreach=True),
    partial(AdamW, lr=0.01, weight_decay=0.1, foreach=False),
]


def attack(seed: int) -> Attack:
    """The attack of a seed."""
    dice = random.Random(seed + 2)
    step, zero, to_none = dice.choice(STEPS), dice.random() < 0.8, dice.random() < 0.7

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(tree(random.Random(seed)), Linear(WIDTH, 2))  # which is trained

    def chosen(live: Live) -> None:
        for part in live.model.modules():
            if isinstance(part, Sometimes):
                part.at = live.rank + live.turn
        step(live)

    options = {"zero": zero, "to_none": to_none, "find": True}
    return Attack(make, chosen, partial(units, seed), optimizer=dice.choice(OPTIMIZERS), **options)


def verdicts(seeds: list[int], ways: list[str]) -> dict[str, list[str]]:
    """This rank's differences, by seed, which also says in which way and over what."""
    chosen = []
    for seed in seeds:
        dice = random.Random(seed + 3)
        chosen.append((f"seed {seed}", attack(seed), dice.choice(ways), dice.choice(COMMS)()))
    return attacks.tried(chosen)
