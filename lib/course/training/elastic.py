"""A training script that a dead rank does not undo: it goes on from its last checkpoint.

The network learns scikit-learn's digits under DistributedDataParallel. When a rank dies, the
launcher ends the others, and starts all of them again; what they find in the folder tells them
where to go on. `python -m minidist.train` does the same under torchrun.
"""

# mypy: disable-error-code=no-untyped-call
# (torch does not type `backward`, and the book shows these lines)

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course.training import data, models

BATCH = 64  # images a step, of all ranks together
EVERY = 4  # steps from checkpoint to checkpoint


# [train]
def train(folder: Path, steps: int, die_at: int | None = None) -> list[float]:
    """Train on all ranks of the default group; return the loss of each step, alike on all ranks.

    Starts from the checkpoint in `folder`, if there is one. The last rank kills itself before step
    `die_at`, once.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, optimizer, losses = _begin(folder)
    model = DistributedDataParallel(net)
    for step in range(len(losses), steps):
        if step == die_at and rank == ranks - 1 and _first_time(folder / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        pixels, labels = (part.tensor_split(ranks)[rank] for part in _batch(step))
        loss = functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
        if rank == 0 and (step + 1) % EVERY == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            _save(state, folder / "checkpoint.pt")
    return losses


def _save(state: dict[str, Any], path: Path) -> None:
    """Never leave half a checkpoint: write another file, then put it in place in one go."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


# [end]


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


def _first_time(mark: Path) -> bool:
    first = not mark.exists()
    mark.touch()
    return first


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of a step; which they are depends on its number alone."""
    pixels, labels = data.digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:BATCH]
    return pixels[order], labels[order]
