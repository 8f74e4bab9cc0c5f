"""A training script that a dead rank does not undo: it goes on from its last checkpoint.

The network learns scikit-learn's digits under DistributedDataParallel. When a rank dies, the
launcher ends the others, and starts all of them again; what they find in the folder tells them
where to go on. `python -m minidist.train` does the same under torchrun.
"""

# mypy: disable-error-code=no-untyped-call

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course.training import data, models
from course.training.loop import save

BATCH = 64  # images a step, of all ranks together
EVERY = 4  # steps from checkpoint to checkpoint


def train(folder: Path, steps: int, die_at: int | None = None) -> list[float]:
    """Train on all ranks of the default group; return the loss of each step, alike on all ranks.

    Starts from the checkpoint in `folder`, if there is one. The last rank kills itself before step
    `die_at`.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, optimizer, losses = _begin(folder)
    model, digits = DistributedDataParallel(net), data.digits()
    for step in range(len(losses), steps):
        if step == die_at and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        order = torch.randperm(len(digits[1]), generator=torch.Generator().manual_seed(step))
        own = order[:BATCH].tensor_split(ranks)[rank]  # depends on nothing but the step
        pixels, labels = (part[own] for part in digits)
        loss = functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
        if (step + 1) % EVERY == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            save(state, folder / "checkpoint.pt")
    return losses


def _begin(folder: Path) -> tuple[torch.nn.Module, torch.optim.Optimizer, list[float]]:
    """Network, optimizer, and the losses of the steps that are done."""
    torch.manual_seed(0)
    net = models.mlp((64, 32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    path = folder / "checkpoint.pt"
    if not path.exists():
        return net, optimizer, []
    state = torch.load(path)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return net, optimizer, state["losses"]
