"""What ZeroOptimizer refuses in training; wrong arguments are in `test_wrapping_checks`."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from minidist import DistributedDataParallel, MismatchError, RankError, ZeroOptimizer, launch
from minidist.parallel.holders import holder_of
from tests.proof.attacks import NoGradient
from tests.support.refusals import refused
from tests.support.training import LOCAL, Twins, mlp, numbers, scaled_step, squares


def zero(params: Any, kind: Any = SGD, **options: Any) -> ZeroOptimizer:
    return ZeroOptimizer(params, kind, **{"stage": 2, "lr": 0.1, **options})


def net() -> nn.Module:
    return mlp(4, 3)


def test_what_is_built_later_takes_over_and_the_one_before_refuses_to_step() -> None:
    """As when a notebook's cell is run again, while something still refers to the first."""

    def run() -> None:
        for options in ({"stage": 2}, {"stage": 1, "gradients": "local"}):
            twins = Twins(net, kind=SGD, lr=0.1, momentum=0.9)
            first = twins.zero
            twins.backward(squares, 0)
            twins.step()
            state = first.full_state_dict()
            twins.zero = second = zero(twins.net.parameters(), lr=1, **options)
            second.load_full_state_dict(state)
            assert holder_of(twins.net[0].weight) is second
            for step in (1, 2):
                twins.backward(squares, step)
                assert refused(first.step) == (
                    f"rank {dist.get_rank()}: ZeroOptimizer, averaging: another ZeroOptimizer was "
                    "built on its parameters, and has taken over; use that one"
                )
                twins.step()
            assert twins.apart() == ""

    launch(run, 2)


def test_ranks_that_differ_hear_of_the_first_difference() -> None:
    def groups(rank: int) -> Any:
        every = list(mlp(4, 3, 2).parameters())
        cut = 2 + (rank == 2)
        return zero([{"params": every[:cut]}, {"params": every[cut:]}], Adam)

    def own_rate(rank: int) -> Any:
        """Each rank steps on its own slices: weights would still be alike, and wrong."""
        model = net()
        optimizer = zero(model.parameters())
        squares(model, rank, 0).backward()
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + rank)
        optimizer.step()

    def not_on_ddp(rank: int) -> Any:
        """Its replicas would be alike after the step, of gradients that nobody has averaged."""
        model = net()
        optimizer = zero(model.parameters(), stage=1)
        squares(model, rank, 0).backward()
        optimizer.step()

    def run() -> list[str]:
        makes: list[Callable[[int], Any]] = [
            lambda rank: zero(mlp(4, 3 + (rank == 1)).named_parameters()),
            lambda rank: zero(net().named_parameters(), Adam, lr=0.1 if rank else 0.2),
            groups,
            lambda rank: zero(net().parameters(), stage=1 + rank % 2),
            own_rate,
            not_on_ddp,
            lambda rank: zero(net().parameters(), lr=-1 if rank == 1 else 0.1),
        ]
        rank = dist.get_rank()
        own = len(makes) - 1 if rank == 1 else None  # what is wrong on this rank alone
        kinds = [ValueError if n == own else MismatchError for n in range(len(makes))]
        return [refused(partial(make, rank), k) for make, k in zip(makes, kinds, strict=True)]

    shape, lr, cut, stage, rate, gradients, own = launch(run, 3)[0]
    assert shape == (
        "the ranks' optimizers differ: rank 1 has 0.weight in group 0, (4, 4), torch.float64 on "
        "cpu, requires grad; ranks 0, 2 have 0.weight in group 0, (3, 4), torch.float64 on cpu, "
        "requires grad"
    )
    assert "rank 0 has group 0 of Adam with" in lr
    assert "lr=0.2" in lr
    assert "rank 2 has parameter 2 of group 0 in group 0, (2, 3)" in cut
    assert stage.startswith("ZeroOptimizer: the ranks disagree on stage: rank 1 passed 2")
    step = "ZeroOptimizer.step: the ranks disagree on the"
    assert rate.startswith(f"{step} hyper-parameters of group 0: rank 0 passed ")
    assert "lr=0.05, " in rate
    assert gradients.startswith(f"{step} gradients, which DDP makes alike (without it pass gradi")
    assert own == "ZeroOptimizer: on rank 1: Invalid learning rate: -1"


def test_a_step_that_cannot_be_made_and_a_copy_say_why() -> None:
    def run() -> list[str]:
        found = []
        for gradients in ("averaged", "local"):
            model = net()
            optimizer = zero(model.named_parameters(), stage=1, gradients=gradients)
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                told = refused(lambda act=act, own=optimizer: act(own), TypeError)
                assert "a ZeroOptimizer cannot be copied or pickled" in told
            given = optimizer.param_groups[0]["params"]
            for other in ([*given, nn.Parameter(torch.zeros(1))], given[:1], [given[0]] * 2):
                optimizer.param_groups[0]["params"] = other
                assert "param_groups have other parameters than the" in refused(optimizer.step)
            optimizer.param_groups[0]["params"] = given
            more = {"params": [("more", nn.Parameter(torch.zeros(1)))]}
            told = refused(partial(optimizer.add_param_group, more), NotImplementedError)
            assert told == "ZeroOptimizer.add_param_group: build it anew, with all groups"
            model.float()
            squares(model, 0, 0).backward()
            found.append(refused(optimizer.step))

        model = mlp(4, 4)
        inside = zero(model.parameters())
        model[0].weight.register_post_accumulate_grad_hook(lambda _: inside.step())
        found.append(refused(lambda: squares(model, 0, 0).backward()))

        table = nn.Embedding(5, 3, sparse=True)
        sparse = zero(table.named_parameters(), stage=1, gradients="local")
        table(torch.tensor([1, 2])).sum().backward()
        found.append(refused(sparse.step, TypeError))
        table = nn.Embedding(5, 3, sparse=True)
        _second = zero(table.named_parameters(), stage=2)
        score = table(torch.tensor([1, 2])).sum()
        found.append(refused(score.backward, TypeError))
        return found

    *moved, inside, sparse, second = launch(run, 2)[1]
    assert second.startswith("rank 1: ZeroOptimizer: expected a dense gradient of weight, got lay")
    for told in moved:
        assert told.startswith("rank 1: ZeroOptimizer")
        assert "0.bias was given other memory after the ZeroOptimizer was built, as .to()" in told
    assert "its backward is still under way" in inside
    assert sparse == (
        "rank 1: ZeroOptimizer, averaging: expected a dense gradient of weight, got layout "
        "torch.sparse_coo; build its module with sparse=False"
    )


def test_a_step_that_one_rank_skips_is_told() -> None:
    def skips() -> None:
        model = net()
        optimizer = zero(model.parameters())
        squares(model, 0, 0).backward()
        if dist.get_rank() == 0:
            optimizer.step()
        else:
            squares(model, 0, 1).backward()

    with pytest.raises(RankError, match="disagree on the call") as caught:
        launch(skips, 2)
    assert isinstance(caught.value.__cause__, MismatchError)


# ---- gradients that come twice, or not at all ----


class Twice(nn.Module):
    """A checkpointed layer that is used twice, between two others."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.layer, self.head = mlp(4, 4), mlp(4, 4), mlp(4, 2)
        self.how = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.how)
        return self.head(x)


class WithoutGradient(nn.Module):
    """A custom `autograd.Function` that returns None for a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(4, 4), mlp(4, 2)
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(NoGradient.apply(self.first(x), self.weight))


def four(model: Any, rank: int, step: int) -> torch.Tensor:
    return model(numbers(rank, step, 3, 4)).square().mean()


def test_a_checkpointed_layer_that_is_used_twice() -> None:
    """Its parameters get two gradients in one backward, if it is of the reentrant kind."""

    def run() -> list[str]:
        kinds = [(False, 1e-6), (True, 25), (True, 1e-6)]  # in the last, its bucket has left
        return [
            Twins(lambda how=how: Twice(how), bucket_cap_mb=cap).train(four).apart()
            for how, cap in kinds
        ]

    assert launch(run, 2) == [[""] * 3] * 2


def test_a_backward_that_returns_none_or_a_hook_that_takes_a_gradient_away_is_no_gradient() -> None:
    """As in one process: the parameter is left alone, also by weight decay."""

    def steal(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def robbed() -> nn.Module:
        model = WithoutGradient()
        model.first[0].bias.register_post_accumulate_grad_hook(steal)
        return model

    def run() -> list[str]:
        found = []
        for cap in (1e-6, 25):
            options = {"bucket_cap_mb": cap, "lr": 0.1, "weight_decay": 0.5}
            for mode in LOCAL:
                found.append(Twins(WithoutGradient, mode, **options).train(four).apart())
            twins = Twins(robbed, "stage 2", **options)
            twins.alone.first[0].bias.register_post_accumulate_grad_hook(steal)
            found.append(twins.train(four).apart())
        return found

    assert launch(run, 2) == [[""] * 6] * 2


# ---- loss scaling ----


def test_a_loss_scaler_works_on_ddps_gradients_and_is_refused_on_local_ones() -> None:
    """Rank 1 alone meets an infinite loss, at step 1."""

    def run() -> None:
        rank = dist.get_rank()
        for stage, gradients in ((1, "averaged"), (1, "local"), (2, "local")):
            model = net() if gradients == "local" else DistributedDataParallel(net())
            optimizer = zero(model.parameters(), stage=stage, gradients=gradients)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for step, seen in enumerate([(8.0, True), (4.0, False)]):
                optimizer.zero_grad()
                huge = float("inf") if (rank, step) == (1, 1) else 1
                scaler.scale(squares(model, rank, step) * huge).backward()
                if gradients == "averaged":
                    assert scaled_step(scaler, optimizer) == seen
                    continue
                said = refused(lambda own=optimizer, by=scaler: by.step(own))
                assert said.startswith(f"rank {rank}: ZeroOptimizer: a GradScaler divides")
                break

    launch(run, 2)
