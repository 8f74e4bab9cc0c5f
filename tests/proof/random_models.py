"""Random models, cut at random, trained at random: attacks that nobody has thought of.

A model is a tree, of modules that take and return [..., 3] in float64. Seeds tell what it is, which
of its modules are units, how a step goes, and how it is sharded; the same seed tells the same.
"""

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Adam, AdamW
from torch.utils.checkpoint import checkpoint

from minidist.comm.comm import Native, Ours
from tests.proof import attacks
from tests.proof.attacks import Attack, Live

WIDTH = 3
COMMS = [Ours, Native, partial(Ours, algorithm="ring"), partial(Ours, algorithm="shared_memory")]


# ---- leaves ----


class Wide(nn.Module):
    """Two layers, by some other width; either may be frozen."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        width = dice.randint(1, 7)
        self.up = nn.Linear(WIDTH, width, bias=dice.random() < 0.7)
        self.down = nn.Linear(width, WIDTH, bias=dice.random() < 0.7)
        for layer in (self.up, self.down):
            layer.requires_grad_(dice.random() < 0.8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Scale(nn.Module):
    """A number, a vector, something turned, and something empty."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.randn(dice.choice([(), (1,), (WIDTH,), (1, WIDTH)])))
        self.none = nn.Parameter(torch.randn(dice.choice([(0,), (0, 2), (2, 0)])))
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.by) @ self.turned + self.none.sum()


class Tied(nn.Module):
    """A matrix that two layers have."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


class Sometimes(nn.Module):
    """Parameters of which each rank uses others, others in each turn, and one that no one does."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.table = nn.ParameterList([torch.randn(WIDTH) for _ in range(dice.randint(2, 5))])
        self.never = nn.Parameter(torch.randn(2))
        self.at = 0  # the step sets it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[self.at % len(self.table)]


# ---- inner nodes ----


class Around(nn.Module):
    """Calls its child in one of a few ways."""

    def __init__(self, dice: random.Random, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.child = make()
        self.how = dice.choice(list(HOW))
        self.own = nn.Parameter(torch.randn(WIDTH)) if dice.random() < 0.5 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = HOW[self.how](self.child, x)
        return y if self.own is None else y * self.own


HOW: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "once": lambda child, x: child(x),
    "residual": lambda child, x: x + child(x),
    "twice": lambda child, x: child(torch.tanh(child(x))),
    "both ways": lambda child, x: child(x) - child(-x),
    "by keyword": lambda child, x: child(x=x),
    "checkpoint": lambda child, x: checkpoint(child, x, use_reentrant=False),
    "in place": lambda child, x: child(x).mul_(1.5),
    "without its input": lambda child, x: child(x.detach()) + x,
}


class Many(nn.Module):
    """Several children: one after the other, side by side, or one of which nothing is used."""

    def __init__(self, dice: random.Random, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.children_ = nn.ModuleList(make() for _ in range(dice.randint(2, 3)))
        self.how = dice.choice(["chain", "sum", "product", "the first"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "chain":
            for child in self.children_:
                x = torch.tanh(child(x))
            return x
        found = [child(x) for child in self.children_]
        if self.how == "the first":
            return found[0]
        return sum(found) if self.how == "sum" else torch.tanh(found[0]) * found[-1]


def tree(dice: random.Random, depth: int = 3) -> nn.Module:
    """A random tree of modules."""
    smaller = partial(tree, dice, depth - 1)
    if depth and dice.random() < (0.9 if depth > 1 else 0.5):
        return dice.choice([Around, Many])(dice, smaller)
    return dice.choice([Wide, Wide, Scale, Tied, Sometimes])(dice)


def units(seed: int, net: nn.Module) -> list[nn.Module]:
    """Which modules are units, besides the whole: inner ones first."""
    dice = random.Random(seed + 1)
    kinds = Wide | Scale | Tied | Around | Many
    inner = [part for part in net.modules() if isinstance(part, kinds)]
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
        return nn.Sequential(tree(random.Random(seed)), nn.Linear(WIDTH, 2))  # which is trained

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
