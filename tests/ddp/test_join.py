"""Ranks with different numbers of batches, against PyTorch's own join and against one process."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minidist import DistributedDataParallel, launch
from minidist.comm.comm import Comm, Native, Ours
from minidist.comm.replicas import check_replicas

torch_ddp = nn.parallel.DistributedDataParallel
Counts = list[int]  # each rank's number of batches
State = dict[str, torch.Tensor]


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


def batch(rank: int, turn: int, samples: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + turn)
    return torch.randn(samples, 3, dtype=torch.float64, generator=generator)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def trained(model: nn.Module, count: int) -> State:
    """This rank's model after so many steps within join."""
    optimizer = sgd(model)
    with model.join():
        for turn in range(count):
            optimizer.zero_grad()
            loss_of(model(batch(dist.get_rank(), turn))).backward()
            optimizer.step()
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def alone(counts: Counts) -> State:
    """What it should come to: rank r's t-th batch is in the t-th step, as long as it has any."""
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(counts)):
        going = [rank for rank, count in enumerate(counts) if turn < count]
        optimizer.zero_grad()
        for rank in going:
            (loss_of(net(batch(rank, turn))) / len(counts)).backward()
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
        mine = counts[rank]
        theirs = trained(torch_ddp(Net(norm)), mine)
        if not norm and not same(theirs, alone(counts)):
            wrong.append("torch itself")
        for turn, sync in enumerate(MODES):
            views = (turn + norm) % 2 == 0
            comm = COMMS[(turn + norm) % 3]()
            model = wrapped(norm, sync=sync, gradient_as_bucket_view=views, comm=comm)
            if not same(trained(model, mine), theirs):
                wrong.append(f"{sync}, views: {views}, norm: {norm}")
            check_replicas(model)
            if model.steps != max(counts):
                wrong.append(f"{sync}: {model.steps} steps")
            loss_of(model(batch(rank, 9))).backward()  # all go on together
            sgd(model).step()
            check_replicas(model, buffers=False)
    return wrong


UNEVEN = [[3], [2, 2], [2, 3], [4, 1], [0, 3], [2, 2, 2], [4, 1, 2], [0, 0, 3]]


@pytest.mark.parametrize("counts", UNEVEN, ids=str)
def test_uneven_inputs_come_to_what_torch_makes_of_them(counts: Counts) -> None:
    assert launch(against_torch, len(counts), counts) == [[]] * len(counts)


# ---- what is harder ----


def accumulating(micro: Counts) -> State:
    """Each step has two backwards, the first in no_sync; `micro`: each rank's steps."""
    model = wrapped(gradient_as_bucket_view=True)
    optimizer = sgd(model)
    rank = dist.get_rank()
    with model.join():
        for turn in range(micro[rank]):
            for half in range(2):
                with model.no_sync() if half == 0 else nullcontext():
                    (loss_of(model(batch(rank, 2 * turn + half))) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.module.state_dict()


def alone_accumulating(micro: Counts) -> State:
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(micro)):
        for rank in (rank for rank, count in enumerate(micro) if turn < count):
            for half in range(2):
                (loss_of(net(batch(rank, 2 * turn + half))) / 2 / len(micro)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def twice_forward(counts: Counts) -> State:
    """Two forwards to a backward, and an evaluation between: only what is sent is announced."""
    model = wrapped()
    optimizer = sgd(model)
    rank = dist.get_rank()
    with model.join():
        for turn in range(counts[rank]):
            optimizer.zero_grad()
            loss = loss_of(model(batch(rank, 2 * turn)) + model(batch(rank, 2 * turn + 1)))
            with torch.no_grad():
                model(batch(rank, 99))
            loss.backward()
            optimizer.step()
    return model.module.state_dict()


def alone_twice(counts: Counts) -> State:
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(counts)):
        optimizer.zero_grad()
        for rank in (rank for rank, count in enumerate(counts) if turn < count):
            both = net(batch(rank, 2 * turn)) + net(batch(rank, 2 * turn + 1))
            (loss_of(both) / len(counts)).backward()
        optimizer.step()
    return net.state_dict()


def weighing(counts: Counts) -> State:
    """Rank r's t-th batch has r + t + 1 samples, and counts for so many."""
    model = wrapped()
    optimizer = sgd(model)
    rank = dist.get_rank()
    with model.join():
        for turn in range(counts[rank]):
            optimizer.zero_grad()
            model.weigh(rank + turn + 1)
            loss_of(model(batch(rank, turn, rank + turn + 1))).backward()
            optimizer.step()
    return model.module.state_dict()


def alone_weighing(counts: Counts) -> State:
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(counts)):
        optimizer.zero_grad()
        sizes = {rank: rank + turn + 1 for rank, count in enumerate(counts) if turn < count}
        whole = torch.cat([batch(rank, turn, size) for rank, size in sizes.items()])
        loss_of(net(whole)).backward()
        optimizer.step()
    return net.state_dict()


def branching(counts: Counts) -> State:
    """Each batch uses one head; a head that no rank used is left alone. By a hook that averages."""
    model = wrapped(find_unused_parameters=True)
    model.register_comm_hook(None, allreduce_hook)
    optimizer = sgd(model)
    rank = dist.get_rank()
    with model.join():
        for turn in range(counts[rank]):
            optimizer.zero_grad()
            loss_of(model(batch(rank, turn), only=(rank + turn) % 2)).backward()
            optimizer.step()
    return model.module.state_dict()


def alone_branching(counts: Counts) -> State:
    net = Net()
    optimizer = sgd(net)
    for turn in range(max(counts)):
        optimizer.zero_grad()
        for rank in (rank for rank, count in enumerate(counts) if turn < count):
            loss = loss_of(net(batch(rank, turn), only=(rank + turn) % 2))
            (loss / len(counts)).backward()
        optimizer.step()
    return net.state_dict()


def the_harder(counts: Counts) -> list[str]:
    pairs = [
        (accumulating, alone_accumulating),
        (twice_forward, alone_twice),
        (weighing, alone_weighing),
        (branching, alone_branching),
    ]
    return [way.__name__ for way, reference in pairs if not same(way(counts), reference(counts))]


@pytest.mark.parametrize("counts", [[1, 3], [3, 0, 2]], ids=str)
def test_accumulation_several_forwards_weights_and_unused_parameters(counts: Counts) -> None:
    assert launch(the_harder, len(counts), counts) == [[]] * len(counts)


def own_buffers() -> list[float]:
    """Each rank's own buffers, if they are not broadcast; but for those, the same models."""
    model = wrapped(norm=True, broadcast_buffers=False)
    trained(model, 1 + dist.get_rank())
    check_replicas(model, buffers=False)
    return model.module.norm.running_mean.tolist()


def test_buffers_stay_each_rank_s_own_if_wanted() -> None:
    first, second = launch(own_buffers, 2)
    assert first != second


# ---- what is refused ----


def refusals() -> dict[str, str]:
    rank, said = dist.get_rank(), {}
    model = wrapped()
    with pytest.raises(RuntimeError) as caught, model.join(), model.join():
        pass
    said["twice"] = str(caught.value)
    normed = wrapped(norm=True)
    with pytest.raises(RuntimeError) as caught, normed.join():
        normed.weigh(3) if rank == 0 else normed(batch(rank, 0))
    said["other"] = str(caught.value)
    with pytest.raises(ZeroDivisionError), model.join():
        raise ZeroDivisionError
    trained(model, 3 if rank == 1 else 1)
    check_replicas(model)
    return said


def test_what_cannot_be_joined_is_said_on_every_rank() -> None:
    for rank, said in enumerate(launch(refusals, 2)):
        assert said == {
            "twice": f"rank {rank}: join: this model is within join already",
            "other": "join: the ranks are not at the same point: rank 0: weigh; rank 1: forward",
        }
