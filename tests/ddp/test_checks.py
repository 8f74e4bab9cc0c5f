"""What DDP refuses, and how it says so."""

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import Counted, DistributedDataParallel, MismatchError, Ours, launch
from tests.support.refusals import says
from tests.support.training import mlp, numbers

EACH = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}
NAME = "DistributedDataParallel"


def wrap(module: nn.Module, **options: Any) -> str:
    return says(lambda: DistributedDataParallel(module, **options))


def once(model: Any, rank: int | None = None, step: int = 0) -> None:
    rank = dist.get_rank() if rank is None else rank
    model(numbers(rank, step, 2, 4)).square().mean().backward()


def test_ranks_hear_of_each_other() -> None:
    def run() -> list[str]:
        rank = dist.get_rank()
        ddp = DistributedDataParallel(mlp(4, 3))
        return [
            wrap(mlp(4, 3), bucket_cap_mb=25 + rank),
            wrap(mlp(4, 3), find_unused_parameters=rank == 1),
            wrap(mlp(4, 3) if rank == 0 else nn.ReLU()),
            wrap(mlp(4, 3 + rank)),
            says(lambda: ddp.register_comm_hook(None, print if rank else max)),
        ]

    wants = [
        "disagree on bucket_cap_mb: rank 0 passed 25; rank 1 passed 26",
        "disagree on find_unused_parameters: rank 0 passed False; rank 1",
        "on rank 1: module: expected a parameter",
        "models differ",
        "disagree on hook: rank 0 passed max; rank 1 passed print",
    ]
    first, second = launch(run, 2)
    assert [want for want, said in zip(wants, first, strict=True) if want not in said] == []
    assert "0.weight" in first[3]
    assert f"rank 1: {NAME}: module: expected a parameter" in second[2]


CHANGES: dict[str, Callable[[Any], object]] = {
    "2.bias, 2.weight": lambda net: net.append(nn.Linear(3, 3)),
    "0.weight, 0.weight": lambda net: setattr(
        net[0], "weight", nn.Parameter(net[0].weight.detach().clone())
    ),
    "0.bias": lambda net: net[0].bias.requires_grad_(False),
    "0.bias, 0.weight": lambda net: net.float(),
}


def test_a_module_that_was_changed_is_seen_at_the_next_forward() -> None:
    def run() -> list[str]:
        found = []
        for change in CHANGES.values():
            ddp = DistributedDataParallel(mlp(4, 3))
            ddp.module[1] = nn.ReLU()  # type: ignore[operator, index]
            once(ddp)  # what has no parameters may be exchanged
            change(ddp.module)
            found.append(says(lambda ddp=ddp: once(ddp)))
        return found

    for told, names in zip(launch(run, 1)[0], CHANGES, strict=True):
        said = told.removeprefix("RuntimeError: rank 0: module: ").split(" changed after")[0]
        assert sorted(said.split(", ")) == names.split(", ")


# Ranks that fall out of step


def test_a_rank_that_skips_a_backward_is_named() -> None:
    def skips(net: nn.Module) -> str:
        ddp = DistributedDataParallel(net)
        once(ddp)
        with pytest.raises(MismatchError) as told:
            twice(ddp)
        return str(told.value)

    def twice(ddp: nn.Module) -> None:
        for _ in range(2):
            out = ddp(numbers(dist.get_rank(), 0, 2, 4)).mean()
            if dist.get_rank() == 0:
                out.backward()
        out.backward()

    def run() -> list[str]:
        return [skips(nn.Sequential(mlp(4, 3), nn.BatchNorm1d(3).double())), skips(mlp(4, 3))]

    with_buffers, without = launch(run, 2)[0]
    assert f"rank 0 passed {NAME}, backward after 2 forwards" in with_buffers
    assert f"rank 1 passed {NAME}, forward after 3 forwards" in with_buffers
    assert "backward after 2 forwards" in without
    assert f"rank 1 passed {NAME}, backward after 3 forwards" in without


def test_a_wrapper_that_is_let_go_is_gone_and_keeps_quiet() -> None:
    """As in a notebook's cell that is run again, after a forward that nobody went back."""

    def run() -> list[bool]:
        net = mlp(4, 3)
        ddp = DistributedDataParallel(net)
        gone = weakref.ref(ddp)
        ddp(numbers(0, 0, 2, 4))
        ddp = DistributedDataParallel(net, comm=(comm := Counted(Ours())))
        comm.clear()
        once(ddp)
        calls = [call.name for call in comm.calls]
        loss = ddp(numbers(dist.get_rank(), 1, 2, 4)).mean()
        del ddp
        loss.backward()  # the graph holds the wrapper
        grads = [p.grad.sum().item() for p in net.parameters() if p.grad is not None]
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, grads)
        return [gone() is None, calls == ["all_reduce"], everyone[0] == everyone[1]]

    assert launch(run, 2) == [[True] * 3] * 2


# Gradients that cannot be averaged


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.part, self.last = mlp(4, 3), mlp(3, 3), mlp(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.part, x, use_reentrant=True)
        return self.last(x)


def test_sparse_gradients_and_second_ones_after_the_bucket_has_left() -> None:
    def run() -> tuple[str, str]:
        embedding = DistributedDataParallel(nn.Embedding(5, 3, sparse=True))
        sparse = says(lambda: embedding(torch.tensor([1, 2])).mean().backward())
        second = says(lambda: once(DistributedDataParallel(Twice(), **EACH)))
        return sparse, second

    for rank, (sparse, second) in enumerate(launch(run, 2)):
        where = f"rank {rank}: {NAME}"
        assert sparse.startswith(f"TypeError: {where}: expected a dense gradient of weight, got")
        assert "build its module with sparse=False" in sparse
        assert second.startswith(f"RuntimeError: {where}: part.0.")
        assert "got a second gradient in one backward" in second


# What is saved and copied


@pytest.mark.claim("C13")
def test_states_are_those_of_the_bare_module_and_the_wrapper_cannot_be_copied() -> None:
    def run() -> list[str]:
        bare, torchs = mlp(4, 3), nn.parallel.DistributedDataParallel(mlp(4, 3))
        ddp = DistributedDataParallel(mlp(4, 3))
        assert list(ddp.state_dict()) == list(bare.state_dict())
        ddp.load_state_dict({name: 0 * value for name, value in bare.state_dict().items()})
        assert not any(p.any() for p in ddp.parameters())
        ddp.load_state_dict(torchs.state_dict())  # its names begin with "module."
        assert torch.equal(ddp.module[0].weight, torchs.module[0].weight)  # type: ignore[index]
        missing = ddp.load_state_dict({}, strict=False).missing_keys
        assert missing == ["0.weight", "0.bias"]
        once(ddp)  # and its parameters are still those that were wrapped
        ways: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, pickle.dumps]
        return [says(lambda way=way: way(ddp)) for way in ways]

    for rank, told in enumerate(launch(run, 2)):
        for each in told:
            assert each.startswith(f"TypeError: rank {rank}: a {NAME} cannot be copied")
            assert "take its .module" in each
