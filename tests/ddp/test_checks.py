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

from minidist import (
    Counted,
    DistributedDataParallel,
    MismatchError,
    Ours,
    RankError,
    launch,
)
from tests.support.training import compare, mlp, numbers, quiet

EACH = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}


def wrap(module: Any, **options: Any) -> str:
    """What wrapping says."""
    with pytest.raises((TypeError, ValueError)) as told:
        DistributedDataParallel(module, **options)
    return f"{type(told.value).__name__}: {told.value}"


def once(model: Any, number: int = 0) -> None:
    model(numbers(dist.get_rank(), number, 2, 4)).square().mean().backward()


WRONG: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "no parameters": (nn.ReLU, {}, "module: expected parameters to train, it has none"),
    "all frozen": (
        lambda: mlp(4, 3).requires_grad_(False),
        {},
        "module: expected a parameter with requires_grad=True, all 2 are frozen",
    ),
    "sync": (
        lambda: mlp(4, 3),
        {"sync": "fast"},
        "sync must be one of naive, flat, bucketed, overlapped, got 'fast'",
    ),
    "cap": (
        lambda: mlp(4, 3),
        {"bucket_cap_mb": 0},
        "bucket_cap_mb: expected a number of MiB above 0, got 0",
    ),
    "NaN": (lambda: mlp(4, 3), {"bucket_cap_mb": float("nan")}, "bucket_cap_mb: expected a"),
    "text": (lambda: mlp(4, 3), {"first_bucket_mb": "25"}, "first_bucket_mb: expected a number"),
}


def test_bad_arguments_name_the_rank_and_what_was_expected() -> None:
    def run() -> dict[str, str]:
        return {name: wrap(make(), **more) for name, (make, more, _) in WRONG.items()}

    for rank, found in enumerate(launch(run, 2)):
        for name, told in found.items():
            where = f"ValueError: rank {rank}: DistributedDataParallel: "
            assert told.startswith(where + WRONG[name][2]), told


def test_ranks_that_pass_different_things_hear_of_each_other() -> None:
    def run() -> list[str]:
        rank = dist.get_rank()
        found = [
            wrap(mlp(4, 3), bucket_cap_mb=25 + rank),
            wrap(mlp(4, 3), find_unused_parameters=rank == 1),
            wrap(mlp(4, 3) if rank == 0 else nn.ReLU()),
            wrap(mlp(4, 3 + rank)),
        ]
        with pytest.raises(MismatchError) as told:
            DistributedDataParallel(mlp(4, 3)).register_comm_hook(None, print if rank else max)
        return [*found, str(told.value)]

    first, second = launch(run, 2)
    assert "disagree on bucket_cap_mb: rank 0 passed 25; rank 1 passed 26" in first[0]
    assert "disagree on find_unused_parameters: rank 0 passed False; rank 1" in first[1]
    assert "on rank 1: module: expected parameters to train" in first[2]
    assert "rank 1: DistributedDataParallel: module: expected parameters" in second[2]
    assert "models differ" in first[3]
    assert "0.weight" in first[3]
    assert "disagree on hook: rank 0 passed max; rank 1 passed print" in first[4]


# What happens to a module after it was wrapped

CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "added": (lambda net: net.append(nn.Linear(3, 3)), "2.weight, 2.bias"),
    "replaced": (
        lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight.detach().clone())),
        "0.weight",
    ),
    "frozen": (lambda net: net[0].bias.requires_grad_(False), "0.bias"),
    "cast": (lambda net: net.float(), "0.weight, 0.bias"),
    "removed": (lambda net: setattr(net[0], "bias", None), "0.bias"),
}


def test_a_module_that_was_changed_is_seen_at_the_next_forward() -> None:
    def run() -> list[str]:
        found = []
        for change, _ in CHANGES.values():
            ddp = DistributedDataParallel(mlp(4, 3))
            ddp.module[1] = nn.ReLU()  # type: ignore[operator, index]
            once(ddp)  # what has no parameters may be exchanged
            change(ddp.module)
            with pytest.raises(RuntimeError) as told:
                once(ddp)
            found.append(str(told.value))
        return found

    for rank, found in enumerate(launch(run, 1)):
        for told, (_, what) in zip(found, CHANGES.values(), strict=True):
            said = told.removeprefix(f"rank {rank}: module: ").split(" changed after wrapping")[0]
            assert sorted(set(said.split(", "))) == sorted(what.split(", "))


# Ranks that fall out of step


def test_a_rank_that_skips_a_backward_is_named() -> None:
    def skips(buffers: bool) -> str:
        net = nn.Sequential(nn.Linear(4, 3).double(), nn.BatchNorm1d(3).double())
        ddp = DistributedDataParallel(net if buffers else mlp(4, 3))
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

    with_buffers, without = launch(lambda: [skips(True), skips(False)], 2)[0]
    assert "rank 0 passed DistributedDataParallel, backward after 2 forwards" in with_buffers
    assert "rank 1 passed DistributedDataParallel, forward after 3 forwards" in with_buffers
    assert "backward after 2 forwards" in without
    assert "rank 1 passed DistributedDataParallel, backward after 3 forwards" in without


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise ArithmeticError("from within backward")


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.breaks = mlp(4, 3), mlp(3, 2), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(Bad.apply(x) if self.breaks else x)


def test_after_a_backward_that_raised_the_wrapper_says_that_it_is_out_of_step() -> None:
    def run() -> list[str]:
        found = []
        for again in ("forward", "backward"):
            net = Breaking()
            ddp = DistributedDataParallel(net, **EACH)
            once(ddp)
            kept = ddp(numbers(dist.get_rank(), 0, 2, 4)).mean()
            net.breaks = True
            with pytest.raises(ArithmeticError, match="from within"):
                once(ddp)
            net.breaks = False
            with pytest.raises(RuntimeError) as told:
                once(ddp) if again == "forward" else kept.backward()
            found.append(str(told.value))
        return found

    for rank, found in enumerate(launch(run, 2)):
        for told in found:
            assert told.startswith(f"rank {rank}: DistributedDataParallel is out of step"), told
            assert "its last backward raised" in told


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


def test_in_no_sync_a_backward_that_raised_does_no_harm() -> None:
    def train(model: Any, rank: int, step: int) -> None:
        net = getattr(model, "module", model)
        net.breaks = True
        with quiet(model), pytest.raises(ArithmeticError):
            once(model)
        net.breaks = False
        model.zero_grad()
        model(numbers(rank, step, 2, 4)).square().mean().backward()

    assert launch(compare, 2, Breaking, train) == ["", ""]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_if_one_rank_raises_the_others_do_not_hang(where: str) -> None:
    def run() -> None:
        net = Breaking()
        ddp = DistributedDataParallel(net, **EACH)
        once(ddp)
        if dist.get_rank() == 1:
            if where == "forward":
                raise ArithmeticError("from within forward")
            net.breaks = True
        once(ddp)

    with pytest.raises(RankError, match=f"rank 1 raised ArithmeticError: from within {where}"):
        launch(run, 3, timeout=60)


# Gradients that are none


def test_a_sparse_gradient_is_refused_by_name() -> None:
    def run() -> str:
        net = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
        ddp = DistributedDataParallel(net)
        with pytest.raises(TypeError) as told:
            ddp(torch.tensor([1, 2])).mean().backward()
        return str(told.value)

    for rank, told in enumerate(launch(run, 2)):
        where = f"rank {rank}: DistributedDataParallel: expected a dense gradient of 0.weight, got"
        assert told.startswith(f"{where} layout torch.sparse_coo; build its module with")


def test_a_second_gradient_in_one_backward_is_refused_once_the_bucket_has_left() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.part, self.last = mlp(4, 3), mlp(3, 3), mlp(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for _ in range(2):
                x = checkpoint(self.part, x, use_reentrant=True)
            return self.last(x)

    def train(model: Any, rank: int, step: int) -> None:
        model(numbers(rank, step, 2, 4)).square().mean().backward()

    def run() -> tuple[str, str]:
        with pytest.raises(RuntimeError) as told:
            once(DistributedDataParallel(Twice(), **EACH))
        advised = {"sync": "bucketed", "gradient_as_bucket_view": True}
        return str(told.value), compare(Twice, train, **advised)

    for rank, (told, wrong) in enumerate(launch(run, 2)):
        assert wrong == "", "as advised"
        assert told.startswith(f"rank {rank}: DistributedDataParallel: part.0.")
        assert "got a second gradient in one backward" in told
        assert "use_reentrant=False" in told


# What is saved and copied


def test_state_dicts_are_those_of_the_bare_module() -> None:
    def run() -> list[bool]:
        bare, torchs = mlp(4, 3), nn.parallel.DistributedDataParallel(mlp(4, 3))
        ddp = DistributedDataParallel(mlp(4, 3))
        same = list(ddp.state_dict()) == list(bare.state_dict())
        bare.load_state_dict(ddp.state_dict())
        zeros = {name: torch.zeros_like(value) for name, value in bare.state_dict().items()}
        ddp.load_state_dict(zeros)
        found = [same, not any(p.any() for p in ddp.parameters())]
        ddp.load_state_dict(torchs.state_dict())  # its names begin with "module."
        found.append(torch.equal(ddp.module[0].weight, torchs.module[0].weight))  # type: ignore[index]
        missing = ddp.load_state_dict({}, strict=False)
        found.append(missing.missing_keys == ["module.0.weight", "module.0.bias"])
        inside, outside = nn.Sequential(ddp, nn.ReLU()), nn.Sequential(bare, nn.ReLU())
        outside.load_state_dict(inside.state_dict())
        inside.load_state_dict(zeros_of(outside))
        found.append(not any(p.any() for p in ddp.parameters()))
        once(ddp)  # and its parameters are still those that were wrapped
        return found

    def zeros_of(net: nn.Module) -> dict[str, torch.Tensor]:
        return {name: torch.zeros_like(value) for name, value in net.state_dict().items()}

    assert launch(run, 2) == [[True] * 5] * 2


def test_the_wrapper_cannot_be_copied_or_pickled() -> None:
    def run() -> list[str]:
        ddp, told = DistributedDataParallel(mlp(4, 3)), []
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError) as raised:
                way(ddp)
            told.append(str(raised.value))
        return told

    for rank, told in enumerate(launch(run, 2)):
        for each in told:
            assert each.startswith(f"rank {rank}: a DistributedDataParallel cannot be copied")
            assert "take its .module" in each
