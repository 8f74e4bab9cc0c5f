"""Ranks with different numbers of batches, against PyTorch's own join and against one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minidist import DistributedDataParallel, launch
from minidist.comm.replicas import check_replicas
from tests.support.training import numbers, quiet

torch_ddp = nn.parallel.DistributedDataParallel
Counts = list[int]  # each rank's number of batches
State = dict[str, torch.Tensor]
Step = Callable[[Any, int, int, float], None]  # step(model, rank, turn, scale) calls backward()


class Net(nn.Module):
    """Two branches, of which a batch may use one; BatchNorm if wanted, so that buffers matter."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        self.double()

    def forward(self, inputs: torch.Tensor, only: int | None = None) -> torch.Tensor:
        hidden = self.norm(self.body(inputs)).tanh()
        used = self.heads if only is None else [self.heads[only]]
        return torch.stack([head(hidden) for head in used]).sum(0)


# ---- what a rank does with one of its batches ----


def plain(model: Any, rank: int, turn: int, scale: float) -> None:
    (model(numbers(rank, turn, 3, 3)).square().mean() * scale).backward()


def accumulating(model: Any, rank: int, turn: int, scale: float) -> None:
    with quiet(model):
        plain(model, rank, turn + 50, scale / 2)
    plain(model, rank, turn, scale / 2)


def branching(model: Any, rank: int, turn: int, scale: float) -> None:
    """Each batch uses one head; a head that no rank used is left alone."""
    out = model(numbers(rank, turn, 3, 3), only=(rank + turn) % 2)
    (out.square().mean() * scale).backward()


# ---- a training loop within join, and what it should come to ----


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def trained(model: Any, count: int, step: Step = plain) -> State:
    optimizer = sgd(model)
    with model.join():
        for turn in range(count):
            optimizer.zero_grad()
            step(model, dist.get_rank(), turn, 1.0)
            optimizer.step()
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def alone(counts: Counts, step: Step = plain) -> State:
    """In one process: rank r's t-th batch is in the t-th step, as long as it has any."""
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(counts)):
        going = [rank for rank, count in enumerate(counts) if turn < count]
        optimizer.zero_grad()
        for rank in going:
            step(net, rank, turn, 1 / len(counts))
        optimizer.step()
    return net.state_dict()


def same(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], 1e-9, 1e-12) for name in other)


MODES = ["naive", "flat", "bucketed", "overlapped"]


def wrapped(norm: bool = False, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(Net(norm), bucket_cap_mb=1e-4, first_bucket_mb=5e-5, **options)


def wrong(counts: Counts) -> list[str]:
    """Every mode with and without views, in turns, against torch's own; and what torch has not."""
    rank, found = dist.get_rank(), []
    for norm in (True, False):
        theirs = trained(torch_ddp(Net(norm)), counts[rank])
        if not norm and not same(theirs, alone(counts)):
            found.append("torch itself")
        for turn, sync in enumerate(MODES):
            model = wrapped(norm, sync=sync, gradient_as_bucket_view=(turn + norm) % 2 == 0)
            if not same(trained(model, counts[rank]), theirs) or model.steps != max(counts):
                found.append(f"{sync}, norm: {norm}, {model.steps} steps")
            check_replicas(model)
            plain(model, rank, 9, 1.0)  # all go on together
            sgd(model).step()
            check_replicas(model, buffers=False)
    for step in (accumulating, branching):
        model = wrapped(find_unused_parameters=step is branching, gradient_as_bucket_view=True)
        if step is branching:
            model.register_comm_hook(None, allreduce_hook)
        if not same(trained(model, counts[rank], step), alone(counts, step)):
            found.append(step.__name__)
    return found


@pytest.mark.parametrize("counts", [[3], [4, 1], [0, 3], [4, 1, 2]], ids=str)
def test_uneven_inputs_come_to_what_torch_makes_of_them(counts: Counts) -> None:
    assert launch(wrong, len(counts), counts) == [[]] * len(counts)


def test_what_cannot_be_joined_is_said_on_every_rank() -> None:
    def refusals() -> tuple[str, list[float]]:
        rank, model = dist.get_rank(), wrapped(norm=True)
        before = model(numbers(rank, 0, 3, 3)).mean()
        with pytest.raises(RuntimeError) as caught, model.join():
            model(numbers(rank, 0, 3, 3)) if rank else before.backward()
        with pytest.raises(RuntimeError, match=f"rank {rank}: weigh: in join"), model.join():
            model.weigh(3)
        own = wrapped(norm=True, broadcast_buffers=False)
        trained(own, 1 + rank)
        check_replicas(own, buffers=False)
        return str(caught.value), own.module.norm.running_mean.tolist()

    (first, own), (second, its_own) = launch(refusals, 2)
    assert first == second
    assert first.endswith("not at the same point: rank 0: backward; rank 1: forward")
    assert own != its_own, "buffers stay each rank's own if wanted"
