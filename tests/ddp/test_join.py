"""Ranks with different numbers of batches, against PyTorch's own join."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minidist import DistributedDataParallel, launch
from minidist.comm.replicas import check_replicas
from tests.support.training import far, numbers, quiet

torch_ddp = nn.parallel.DistributedDataParallel
Step = Callable[[Any, int, int], None]  # step(model, rank, turn) calls backward()


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


def plain(model: Any, rank: int, turn: int) -> None:
    model(numbers(rank, turn, 3, 3)).square().mean().backward()


def accumulating(model: Any, rank: int, turn: int) -> None:
    with quiet(model):
        plain(model, rank, turn + 50)
    plain(model, rank, turn)


def branching(model: Any, rank: int, turn: int) -> None:
    """Each batch uses one head; a head that no rank used is left alone."""
    model(numbers(rank, turn, 3, 3), only=(rank + turn) % 2).square().mean().backward()


def trained(model: Any, count: int, step: Step = plain) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for turn in range(count):
            optimizer.zero_grad()
            step(model, dist.get_rank(), turn)
            optimizer.step()
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def wrapped(norm: bool = False, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(Net(norm), bucket_cap_mb=1e-4, first_bucket_mb=5e-5, **options)


def wrong(counts: list[int]) -> list[str]:
    """With and without views; other steps."""
    rank, found = dist.get_rank(), []
    for norm in (True, False):
        theirs = trained(torch_ddp(Net(norm)), counts[rank])
        for view in (True, False):
            model = wrapped(norm, gradient_as_bucket_view=view)
            found.append(far(trained(model, counts[rank]), theirs))
            assert model.steps == max(counts)
            plain(model, rank, 9)  # all go on together
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            check_replicas(model, buffers=False)
    for step in (accumulating, branching):
        model = wrapped(find_unused_parameters=True, gradient_as_bucket_view=True)
        model.register_comm_hook(None, allreduce_hook)
        torchs = torch_ddp(Net(), find_unused_parameters=True)
        found.append(far(trained(model, counts[rank], step), trained(torchs, counts[rank], step)))
    return [each for each in found if each]


@pytest.mark.parametrize("counts", [[3], [4, 1], [0, 3], [4, 1, 2]], ids=str)
def test_uneven_inputs_come_to_what_torch_makes_of_them(counts: list[int]) -> None:
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
