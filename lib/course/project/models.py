"""Models that the project's code must train, each of drawn sizes and with data of its own."""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course.training.models import GPT


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers, each followed by a Tanh."""
    layers = ((nn.Linear(wide, narrow), nn.Tanh()) for wide, narrow in pairwise(sizes))
    return nn.Sequential(*(each for pair in layers for each in pair)).double()


class Branches(nn.Module):
    """Two branches that even ranks run in one order and odd ranks in the other."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(mlp(inputs, outputs) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run both."""
        step = 1 if dist.get_rank() % 2 else -1
        first, second = self.branches[::step]
        outputs: torch.Tensor = first(inputs) * second(inputs)
        return outputs


class Twice(nn.Module):
    """A unit that runs before and after another; which of two it is changes from step to step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(mlp(width, width) for _ in range(2))
        self.steps = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run three units, two of them the same."""
        self.steps += 1
        outer, inner = self.branches[:: 1 if self.steps % 3 else -1]
        outputs: torch.Tensor = outer(inner(outer(inputs)))
        return outputs


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Random numbers of a step, or of a rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


ORDER = ("first", "second", "third", "fourth")


class Drawn:
    """The sizes and numbers of a case, drawn from a seed; a verdict names the sizes."""

    def __init__(self, seed: int) -> None:
        self.seed, self._random, self.sizes = seed, Random(seed), dict[str, int]()

    def size(self, what: str, first: int, last: int) -> int:
        """A size from the first number to the last."""
        self.sizes[what] = self._random.randint(first, last)
        return self.sizes[what]

    def widths(self, layers: int, least: int = 3) -> list[int]:
        """The widths of the inputs and of so many layers."""
        inputs = self.size("inputs", 2, 7)
        return [inputs, *(self.size(f"{each} width", least, 9) for each in ORDER[:layers])]

    def numbers(self, place: int, *shape: int) -> torch.Tensor:
        """Random numbers, others for each place."""
        return draw(1000 * self.seed + place, *shape)

    def __str__(self) -> str:
        sizes = ", ".join(f"{what} {number}" for what, number in self.sizes.items())
        return f"{f'drawn: {sizes}; ' if sizes else ''}COURSE_SEED={self.seed}"


# ---- models of drawn sizes ----


def uneven(drawn: Drawn) -> nn.Module:
    """Layers whose numbers the ranks cannot share out evenly: somebody has a padded shard."""
    ranks = dist.get_world_size()
    while True:
        net = mlp(*drawn.widths(4, least=1))
        if ranks == 1 or sum(each.numel() for each in net.parameters()) % ranks:
            return net


def nested(drawn: Drawn) -> nn.Module:
    """Modules in modules, with parameters on every level."""
    inputs, first, second, third = drawn.widths(3)
    inner = nn.Sequential(mlp(first, second), mlp(second, third))
    return nn.Sequential(mlp(inputs, first), inner, nn.Linear(third, 1).double())


def tied_gpt(drawn: Drawn) -> nn.Module:
    """One matrix is both its first and its last layer."""
    vocab, context = drawn.size("vocabulary", 11, 19), drawn.size("context", 5, 8)
    width = 2 * drawn.size("width of a head", 3, 7)
    return GPT(vocab=vocab, width=width, layers=3, heads=2, context=context).double()


def partly(drawn: Drawn) -> nn.Module:
    """A BatchNorm that keeps its statistics, and a frozen layer between two that train."""
    inputs, first, second = drawn.widths(2)
    norm = nn.BatchNorm1d(inputs).double().eval()  # its buffers: mean, variance, a whole number
    frozen = mlp(first, second).requires_grad_(False)
    return nn.Sequential(norm, mlp(inputs, first), frozen, mlp(second, 2))


class Task(NamedTuple):
    """A model to train, and the loss of some rows of a batch."""

    build: Callable[[Drawn], nn.Module]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]  # loss(model, rows)

    def batch(self, drawn: Drawn, step: int, ranks: int) -> torch.Tensor:
        """The rows of a step, [ranks, rows of a rank, ...]; the sizes have been drawn."""
        wide = drawn.sizes.get("inputs") or drawn.sizes["context"]
        numbers = drawn.numbers(step, ranks, drawn.sizes["rows of a rank"], wide)
        if "vocabulary" in drawn.sizes:
            return (numbers * 2**20).long() % drawn.sizes["vocabulary"]
        return numbers


def squares(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """The mean square of the outputs."""
    outputs: torch.Tensor = model(rows)
    return outputs.square().mean()


def next_token(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """The loss of predicting each next token."""
    return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


EITHER_ORDER = "branches in either order"
TWICE = "a unit that runs before and after another"
WHY = {  # it is the usual reason
    TWICE: " Was a unit gathered ahead, and kept with old weights while the optimizer stepped?",
    EITHER_ORDER: " Even ranks finish the branches in one order and odd ranks in the other: do "
    "their calls mean the same bucket?",
    "large scores": " Their exponentials overflow, or all vanish: subtract the largest score "
    "before `exp`, and add logarithms with `logaddexp`.",
    "GPipe, labels ignored": " Micro-batch 0 has no labels, so the mean of its loss is 0 / 0, and "
    "the others have unequally many: weigh each by its labels.",
}
MODELS = {
    "three layers": Task(lambda drawn: mlp(*drawn.widths(3)), squares),
    "nested modules": Task(nested, squares),
    "a GPT with tied weights": Task(tied_gpt, next_token),
    "a BatchNorm and a frozen layer": Task(partly, squares),
    TWICE: Task(lambda drawn: Twice(*drawn.widths(0)), squares),
    EITHER_ORDER: Task(lambda drawn: Branches(*drawn.widths(1)), squares),
}


def blocks(net: nn.Module) -> list[nn.Module]:
    """The modules in it that are made into units of their own."""
    return [m for m in net.modules() if type(m).__name__ in ("Sequential", "_Block")]
