"""A small model that three ranks train, with a fault of *Write the test* planted or none."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import minidist
from course.ask.line import answering
from course.project.faults import Meeting
from course.project.trainer import run

STEPS = [2**k for k in range(8)]  # after which the loss is looked at
RANKS = 3


class Net(nn.Module):
    """Two layers and a buffer, which is each rank's own at first."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x + self.shift)
        return result


def draw(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of eight numbers, and of each what is to be learned."""
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error."""
    error: Tensor = model(x) - y
    return error.square().mean()


def losses(make: Callable[..., Any]) -> list[float]:
    """On a rank: the loss of 1,000 fixed rows after each number of `STEPS`."""
    net, judge, found = Net(), Net(), []
    trainer = make(net, lambda each: torch.optim.SGD(each, lr=0.05))
    for number in range(1, STEPS[-1] + 1):
        weights = trainer.weights()
        if number in STEPS:
            judge.load_state_dict(weights | {"shift": net.shift})
            with torch.no_grad():
                found.append(loss_of(judge, *draw(1000, 10**6)).item())
        x, y = draw(48, number)
        rows = trainer.rows(number, 48)
        trainer.step(loss_of(trainer.model, x[rows], y[rows]), 1.0)
    return found


def planted(work: Callable[..., Any], fault: str) -> Any:
    """Rank 0's result of work(make), where what is made has the fault."""
    with answering(Meeting(RANKS, fault)) as path:
        return minidist.launch(run, RANKS, work, "DDP", path, device="cpu")[0]
