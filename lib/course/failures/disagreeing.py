"""Ranks that do not make the same calls: another order, shape, dtype, or number of them."""

# mypy: disable-error-code=no-untyped-call

from __future__ import annotations

import resource
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course.failures.case import Case, Kit


def another_order(kit: Kit) -> None:
    """Rank 1 goes through the same calls in another order, as through a set of names."""
    _in_order(kit, ["loss", "seed"] if dist.get_rank() == 0 else ["seed", "loss"])


def another_order_repaired(kit: Kit) -> str:
    """Sorted names have one order."""
    return _in_order(kit, sorted(["loss", "seed"]))


def _in_order(kit: Kit, names: list[str]) -> str:
    tensor = torch.ones(4)
    for name in names:
        if name == "loss":
            kit.all_reduce(tensor)
        else:
            kit.broadcast(tensor, 0)
    return f"{tensor[0]:.0f}"


def another_shape(kit: Kit) -> str:
    """Rank 1's last batch is smaller, and the losses of all samples are summed."""
    losses = torch.ones(3 if dist.get_rank() == 1 else 4)
    kit.all_reduce(losses)
    kit.barrier()
    return str(losses.tolist())


def another_shape_repaired(kit: Kit) -> str:
    """What is sent has the same shape on all ranks: a sum and a count."""
    losses = torch.ones(3 if dist.get_rank() == 1 else 4)
    both = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    kit.all_reduce(both)
    return f"{both[0] / both[1]:.1f} over {both[1]:.0f} samples"


def another_dtype(kit: Kit) -> str:
    """Rank 1 computed its loss outside of autocast, or with a Python float in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # Gloo ends a process for what it received
    loss = torch.ones(4, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32)
    kit.all_reduce(loss)
    return str(loss.tolist())


def another_dtype_repaired(kit: Kit) -> str:
    """Cast before it is sent."""
    loss = torch.ones(4, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32)
    kit.all_reduce(loss := loss.float())
    return str(loss.tolist())


def fewer_batches(kit: Kit) -> str:
    """Rank 1's data end one batch early."""
    return _steps(kit, joined=False)


def fewer_batches_repaired(kit: Kit) -> str:
    """`join` lets a rank that has run out play along with zeros."""
    return _steps(kit, joined=True)


def _steps(kit: Kit, joined: bool) -> str:
    torch.manual_seed(0)
    model = kit.ddp(nn.Linear(2, 1))
    batches = 2 if dist.get_rank() == 1 else 3
    with model.join() if joined else nullcontext():
        for _ in range(batches):
            model(torch.ones(4, 2)).sum().backward()
    return f"{batches} batches"


class Forked(nn.Module):
    """Uses the layers that are named."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, sides: str) -> torch.Tensor:
        """The sum over the sides."""
        return torch.stack([getattr(self, side)(x) for side in sides.split()]).sum(0)


def skipped_parameter(kit: Kit) -> str:
    """Rank 1's batch never reaches one branch of the model."""
    return _branches(kit)


def skipped_parameter_repaired(kit: Kit) -> str:
    """DDP finds out who used what, and counts zeros for the rest."""
    return _branches(kit, find_unused_parameters=True)


def _branches(kit: Kit, **options: Any) -> str:
    torch.manual_seed(0)
    model = kit.ddp(Forked(), **options)
    for _ in range(2):
        sides = "left" if dist.get_rank() == 1 else "left right"
        model(torch.ones(2, 4), sides).sum().backward()
    gradient = model.module.right.weight.grad
    return f"gradient of right.weight: {gradient[0, 0]:.1f}"


CASES = [
    Case(
        "Collectives in another order",
        another_order,
        another_order_repaired,
        "the table of the last calls: the first row in which the names differ",
        "an order that all ranks share: sorted names, no sets, no `if rank == 0` around a call",
        "MINIDIST_CHECK=1; TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ranks=3,
    ),
    Case(
        "Shapes that differ",
        another_shape,
        another_shape_repaired,
        "the shapes in the table; with Gloo some ranks go on with a wrong sum",
        "send what has one shape everywhere: a sum and a count, or padded tensors",
        "MINIDIST_CHECK=1; TORCH_DISTRIBUTED_DEBUG=DETAIL; drop_last=True",
        ranks=3,
    ),
    Case(
        "Dtypes that differ",
        another_dtype,
        another_dtype_repaired,
        "the dtypes in the table; the rank that dies is not the one that is wrong",
        "cast before sending",
        "MINIDIST_CHECK=1; TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ranks=3,
    ),
    Case(
        "A rank with fewer batches",
        fewer_batches,
        fewer_batches_repaired,
        "who has returned already",
        "with model.join(); or as many batches on all ranks: DistributedSampler, drop_last=True",
        "assert that len(loader) is alike on all ranks, before the first step",
    ),
    Case(
        "A parameter skipped on one rank",
        skipped_parameter,
        skipped_parameter_repaired,
        "the parameters that the message lists; the other rank waits in backward",
        "find_unused_parameters=True; or add 0 * the branch's output",
        "minidist raises in that backward; PyTorch at the next forward, with the parameters' names "
        "under TORCH_DISTRIBUTED_DEBUG=INFO",
    ),
]
