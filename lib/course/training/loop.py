"""A training loop for any number of ranks. What differs from that of one process has a remark.

Run by every rank, under `minidist.launch` or torchrun.
"""

# mypy: disable-error-code=no-untyped-call
# (torch does not type `backward`, and the book shows these lines)

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import minidist

Sample = tuple[torch.Tensor, torch.Tensor]  # and its label


def train(
    net: nn.Module,
    dataset: Dataset[Sample],
    path: Path,
    *,
    batch: int = 32,
    epochs: int = 4,
    rate: float = 0.05,
    scale: float = 1,
    micro: int = 1,
    warm: int = 0,
    seed: int = 0,
) -> list[float]:
    """Train a classifier by SGD with momentum; return each epoch's mean loss over all ranks.

    Args:
        net: the bare model, on every rank.
        dataset: samples with their labels, the same on every rank.
        path: where the checkpoint of each epoch goes.
        batch: samples that a rank takes at a time.
        epochs: passes through the data.
        rate: learning rate that fits one rank with `batch`.
        scale: factor of the `rate`; N times `micro` by the linear scaling rule.
        micro: batches to a step, for each rank.
        warm: steps in which the rate grows to `scale` times itself.
        seed: of the order of samples, and of dropout.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own: DistributedSampler[Sample]  # this rank's samples
    own = DistributedSampler(dataset, ranks, rank, seed=seed, drop_last=True)
    loader = DataLoader(dataset, batch, sampler=own, drop_last=True)
    model = minidist.DistributedDataParallel(net)  # same weights, averaged gradients
    torch.manual_seed(seed + rank)  # from here on dropout: own random numbers
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * scale, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda step: warm_up(step, scale, warm))
    losses = []
    for epoch in range(epochs):
        own.set_epoch(epoch)  # another order, on all ranks alike
        total, steps = torch.zeros(()), len(loader) // micro
        numbered = zip(range(steps * micro), loader, strict=False)
        for number, (samples, labels) in numbered:
            last = number % micro == micro - 1
            with nullcontext() if last else model.no_sync():  # talk once for each step
                loss = functional.cross_entropy(model(samples), labels) / micro
                loss.backward()
            total += loss.detach()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        minidist.all_reduce(total, minidist.ReduceOp.AVG)  # everyone's loss, by everyone
        losses.append(total.item() / steps)
        state = {"epoch": epoch, "model": net.state_dict()}  # net's: bare names
        save({**state, "optimizer": optimizer.state_dict()}, path)
        if rank == 0:  # one voice
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


def warm_up(step: int, scale: float, warm: int) -> float:
    """The part of the full rate at a step: from 1 / scale to 1, in `warm` increments.

    Gradual warm-up: Goyal et al. (2017), section 2.2.
    """
    return 1.0 if step >= warm else (1 + (scale - 1) * step / warm) / scale


def save(state: dict[str, Any], path: Path) -> None:
    """Leave rank 0's `state` at `path`. All ranks call it, and then find it there.

    Whoever reads `path` meanwhile finds the old file or the new one, whole.
    """
    if dist.get_rank() == 0:
        aside = path.with_suffix(".new")  # in the same folder, so on the same disk
        torch.save(state, aside)
        os.replace(aside, path)  # in one step
    dist.barrier()  # nobody runs ahead and reads the old one
