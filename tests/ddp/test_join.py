"""Ranks with different numbers of batches, against PyTorch's own join and against one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minidist import DistributedDataParallel, launch
from minidist.comm.comm import Comm, Native, Ours
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


def several_forwards(model: Any, rank: int, turn: int, scale: float) -> None:
    """Two to a backward, and an evaluation between: only what is sent is announced."""
    out = model(numbers(rank, turn, 3, 3)) + model(numbers(rank, turn + 50, 3, 3))
    with torch.no_grad():
        model(numbers(rank, 99, 3, 3))
    (out.square().mean() * scale).backward()


def weighing(model: Any, rank: int, turn: int, scale: float) -> None:
    """Rank r's t-th batch has r + t + 1 samples, and counts for so many."""
    samples = rank + turn + 1
    if hasattr(model, "weigh"):
        model.weigh(samples)
    else:
        scale = samples
    (model(numbers(rank, turn, samples, 3)).square().mean() * scale).backward()


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
        if step is weighing:
            for parameter in net.parameters():
                parameter.grad /= sum(rank + turn + 1 for rank in going)
        optimizer.step()
    return net.state_dict()


def same(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], 1e-9, 1e-12) for name in other)


MODES = ["naive", "flat", "bucketed", "overlapped"]
COMMS: list[Callable[[], Comm | None]] = [lambda: None, Native, lambda: Ours(algorithm="ring")]


def wrapped(norm: bool = False, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(Net(norm), bucket_cap_mb=1e-4, first_bucket_mb=5e-5, **options)


def against_torch(counts: Counts) -> list[str]:
    """Every mode; views and comms in turn."""
    rank, wrong = dist.get_rank(), []
    for norm in (True, False):
        theirs = trained(torch_ddp(Net(norm)), counts[rank])
        if not norm and not same(theirs, alone(counts)):
            wrong.append("torch itself")
        for turn, sync in enumerate(MODES):
            views = (turn + norm) % 2 == 0
            comm = COMMS[(turn + norm) % 3]()
            model = wrapped(norm, sync=sync, gradient_as_bucket_view=views, comm=comm)
            if not same(trained(model, counts[rank]), theirs):
                wrong.append(f"{sync}, views: {views}, norm: {norm}")
            check_replicas(model)
            if model.steps != max(counts):
                wrong.append(f"{sync}: {model.steps} steps")
            plain(model, rank, 9, 1.0)  # all go on together
            sgd(model).step()
            check_replicas(model, buffers=False)
    return wrong


UNEVEN = [[3], [2, 3], [4, 1], [0, 3], [4, 1, 2], [0, 0, 3]]


@pytest.mark.parametrize("counts", UNEVEN, ids=str)
def test_uneven_inputs_come_to_what_torch_makes_of_them(counts: Counts) -> None:
    assert launch(against_torch, len(counts), counts) == [[]] * len(counts)


def other_steps(counts: Counts) -> list[str]:
    steps: dict[Step, DistributedDataParallel] = {
        accumulating: wrapped(gradient_as_bucket_view=True),
        several_forwards: wrapped(),
        weighing: wrapped(),
        branching: wrapped(find_unused_parameters=True),
    }
    steps[branching].register_comm_hook(None, allreduce_hook)
    mine = counts[dist.get_rank()]
    return [
        step.__name__
        for step, model in steps.items()
        if not same(trained(model, mine, step), alone(counts, step))
    ]


@pytest.mark.parametrize("counts", [[1, 3], [3, 0, 2]], ids=str)
def test_accumulation_several_forwards_weights_and_unused_parameters(counts: Counts) -> None:
    assert launch(other_steps, len(counts), counts) == [[]] * len(counts)


def test_buffers_stay_each_rank_s_own_if_wanted() -> None:
    def own_buffers() -> list[float]:
        model = wrapped(norm=True, broadcast_buffers=False)
        trained(model, 1 + dist.get_rank())
        check_replicas(model, buffers=False)
        return model.module.norm.running_mean.tolist()

    first, second = launch(own_buffers, 2)
    assert first != second


def test_what_cannot_be_joined_is_said_on_every_rank() -> None:
    def refusals() -> dict[str, str]:
        rank, said = dist.get_rank(), {}
        model = wrapped()
        with pytest.raises(RuntimeError) as caught, model.join(), model.join():
            pass
        said["twice"] = str(caught.value)
        normed = wrapped(norm=True)
        with pytest.raises(RuntimeError) as caught, normed.join():
            normed.weigh(3) if rank == 0 else normed(numbers(rank, 0, 3, 3))
        said["other"] = str(caught.value)
        with pytest.raises(ZeroDivisionError), model.join():
            raise ZeroDivisionError
        trained(model, 3 if rank == 1 else 1)
        check_replicas(model)
        return said

    for rank, said in enumerate(launch(refusals, 2)):
        assert said == {
            "twice": f"rank {rank}: join: this model is within join already",
            "other": "join: the ranks are not at the same point: rank 0: weigh; rank 1: forward",
        }
