"""Loss over bytes: a small GPT on all ranks, by DDP, or in rounds of H steps."""

# mypy: disable-error-code=no-untyped-call

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from course.training.rounds import Work
from from_scratch.ddp import FlatDDP
from from_scratch.local_sgd import DiLoCo, LocalSGD
from minidist import Counted, Ours

HELD_OUT, LOOKS_AT = 10**6, 16  # whose samples no rank trains on, and in how many batches


class Point(NamedTuple):
    """A rank's bytes sent until a step, and the loss of the model that all ranks have there."""

    step: int
    bytes_sent: int
    loss: float


def learned(work: Work, way: str, steps: int, look: int) -> list[Point]:
    """Train on this rank; a point at the start, and after each `look` steps.

    `way`: "DDP", "averages" (the weights, plainly), or "DiLoCo"; rounds have `work.every` steps,
    and a multiple of it is `look`.
    """
    model, comm = work.model(), Counted(Ours(algorithm="ring", check=False))
    inner = work.inner(model)
    optimizer: Any = inner
    if way == "DDP":
        ddp = FlatDDP(model, comm)
    elif way == "averages":
        optimizer = LocalSGD(inner, comm, work.every)
    else:
        optimizer = DiLoCo(inner, comm, work.every, *work.outer)
    comm.clear()  # all have the weights of rank 0
    points = [Point(0, 0, loss_of(work, model))]
    for step in range(steps):
        work.loss(model, dist.get_rank(), step).backward()
        if way == "DDP":
            ddp.synchronize()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % look == 0:
            points.append(Point(step + 1, comm.bytes_sent, loss_of(work, model)))
    return points


@torch.no_grad()
def loss_of(work: Work, model: Any) -> float:
    """The mean over batches that no rank trains on."""
    losses = [work.loss(model, HELD_OUT, number).item() for number in range(LOOKS_AT)]
    return sum(losses) / len(losses)
