"""Ranks that do not make the same calls: another order, shape, dtype, or number of them."""

# mypy: disable-error-code=no-untyped-call

import resource

import torch
import torch.distributed as dist
from torch import nn

from course.chapters.disagree.failures.case import Case, Kit


def case_3(kit: Kit) -> None:
    """Rank 1 goes through the same calls in another order, as through a set of names."""
    _in_order(kit, ["loss", "seed"] if dist.get_rank() == 0 else ["seed", "loss"])


def _in_order(kit: Kit, names: list[str]) -> str:
    tensor = torch.ones(4)
    for name in names:
        if name == "loss":
            kit.all_reduce(tensor)
        else:
            kit.broadcast(tensor, 0)
    return f"{tensor[0]:.0f}"


def case_4(kit: Kit) -> str:
    """Rank 1's last batch is smaller, and the losses of all samples are summed."""
    losses = torch.ones(3 if dist.get_rank() == 1 else 4)
    kit.all_reduce(losses)
    kit.barrier()
    return str(losses.tolist())


def case_5(kit: Kit) -> str:
    """Rank 1 computed its loss outside of autocast, or with a Python float in it."""
    loss = _own_loss()
    kit.all_reduce(loss)
    return str(loss.tolist())


def _own_loss() -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # Gloo ends a process for what it received
    return torch.ones(4, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32)


def case_6(kit: Kit) -> str:
    """Rank 1's data end one batch early."""
    model, batches = kit.ddp(nn.Linear(2, 1)), _own_batches()
    for batch in batches:
        model(batch).sum().backward()
    return f"{len(batches)} batches"


def _own_batches() -> list[torch.Tensor]:
    return [torch.ones(4, 2)] * (2 if dist.get_rank() == 1 else 3)


class Forked(nn.Module):
    """Uses the layers that are named."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, sides: str) -> torch.Tensor:
        """The sum over the sides."""
        return torch.stack([getattr(self, side)(x) for side in sides.split()]).sum(0)


def case_7(kit: Kit) -> str:
    """Rank 1's batch never reaches one branch of the model."""
    model = kit.ddp(Forked())
    for sides in _own_sides():
        model(torch.ones(2, 4), sides).sum().backward()
    return f"gradient of right.weight: {model.module.right.weight.grad[0, 0]:.1f}"


def _own_sides() -> list[str]:
    return ["left" if dist.get_rank() == 1 else "left right"] * 2


CASES = [
    Case("Collectives in another order", case_3, ranks=3),
    Case("Shapes that differ", case_4, ranks=3),
    Case("Dtypes that differ", case_5, ranks=3),
    Case("A rank with fewer batches", case_6),
    Case("A parameter skipped on one rank", case_7),
]
