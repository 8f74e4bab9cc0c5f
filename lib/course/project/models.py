"""Models that the project's code must train, each with its data."""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course.training.models import GPT

ROWS = 60  # in a batch: 1 to 5 ranks divide it

Loss = Callable[[Any, int, slice], torch.Tensor]  # loss(model, step, rows of the batch)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers, each followed by a Tanh."""
    layers = ((nn.Linear(wide, narrow), nn.Tanh()) for wide, narrow in pairwise(sizes))
    return nn.Sequential(*(each for pair in layers for each in pair)).double()


def nested() -> nn.Module:
    """Modules in modules, with parameters on every level."""
    inner = nn.Sequential(mlp(3, 7), mlp(7, 4))
    return nn.Sequential(mlp(5, 3), inner, nn.Linear(4, 1).double())


def tied_gpt() -> nn.Module:
    """One matrix is both its first and its last layer."""
    return GPT(vocab=17, width=12, layers=3, heads=2, context=7).double()


class Branches(nn.Module):
    """Two branches that even ranks run in one order and odd ranks in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(mlp(5, 6) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run both."""
        step = 1 if dist.get_rank() % 2 else -1
        first, second = self.branches[::step]
        outputs: torch.Tensor = first(inputs) * second(inputs)
        return outputs


def partly() -> nn.Module:
    """A BatchNorm that keeps its statistics, and a frozen layer between two that train."""
    norm = nn.BatchNorm1d(5).double().eval()  # its buffers: mean, variance, and a whole number
    return nn.Sequential(norm, mlp(5, 6), mlp(6, 6).requires_grad_(False), mlp(6, 2))


class Twice(nn.Module):
    """A unit that runs before and after another; which of two it is changes from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(mlp(5, 5) for _ in range(2))
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


class Drawn:
    """The sizes and numbers of a case, drawn from a seed; a verdict names the sizes."""

    def __init__(self, seed: int) -> None:
        self.seed, self._random, self._sizes = seed, Random(seed), dict[str, int]()

    def size(self, what: str, first: int, last: int) -> int:
        """A size from the first number to the last."""
        self._sizes[what] = self._random.randint(first, last)
        return self._sizes[what]

    def numbers(self, place: int, *shape: int) -> torch.Tensor:
        """Random numbers, others for each place."""
        return draw(1000 * self.seed + place, *shape)

    def __str__(self) -> str:
        sizes = ", ".join(f"{what} {number}" for what, number in self._sizes.items())
        return f"{f'drawn: {sizes}; ' if sizes else ''}COURSE_SEED={self.seed}"


def squares(model: Any, step: int, rows: slice) -> torch.Tensor:
    """The mean square of the outputs for some rows of the batch."""
    outputs: torch.Tensor = model(draw(step, ROWS, 5)[rows])
    return outputs.square().mean()


def next_token(model: Any, step: int, rows: slice) -> torch.Tensor:
    """The loss of predicting each next token in some rows of the batch."""
    ids = torch.randint(17, (ROWS, 7), generator=torch.Generator().manual_seed(step))[rows]
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


EITHER_ORDER = "branches in either order"
TWICE = "a unit that runs before and after another"
WHY = {  # it is the usual reason
    TWICE: " Was a unit gathered ahead, and kept with old weights while the optimizer stepped?"
}
MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "three layers": (lambda: mlp(5, 7, 3, 1), squares),
    "nested modules": (nested, squares),
    "a GPT with tied weights": (tied_gpt, next_token),
    "a BatchNorm and a frozen layer": (partly, squares),
    TWICE: (Twice, squares),
    EITHER_ORDER: (Branches, squares),
}


def blocks(net: nn.Module) -> list[nn.Module]:
    """The modules in it that are made into units of their own."""
    return [m for m in net.modules() if type(m).__name__ in ("Sequential", "_Block")]
