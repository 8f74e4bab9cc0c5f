"""What ZeroOptimizer refuses, and how it says so."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from minidist import DistributedDataParallel, MismatchError, RankError, ZeroOptimizer, launch
from minidist.parallel.zero.optimizer import holder_of
from tests.support.training import LOCAL, Twins, mlp, numbers, scaled_step, squares

NAME = "ZeroOptimizer: "


def build(params: Any, kind: Any = SGD, **options: Any) -> str:
    """What building says."""
    with pytest.raises((TypeError, ValueError)) as told:
        ZeroOptimizer(params, kind, **{"lr": 0.1, **options})
    return f"{type(told.value).__name__}: {told.value}"


def refused(act: Callable[[], Any], kind: type[Exception] = RuntimeError) -> str:
    """What it says. Its traceback is let go, and with that whoever raised."""
    with pytest.raises(kind) as told:
        act()
    return str(told.value)


def net() -> nn.Module:
    return mlp(4, 3)


def same_memory() -> list[nn.Parameter]:
    one = nn.Parameter(torch.zeros(4, 3))
    return [one, nn.Parameter(one.data[1:])]


def twice() -> list[nn.Parameter]:
    one = nn.Parameter(torch.zeros(3))
    return [nn.Parameter(torch.zeros(1)), one, one]


class Lamb(SGD):
    pass


# what is passed, and what is said; what every wrapper refuses is in tests/test_wrapping_checks.py
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an instance": (
        {"kind": SGD(net().parameters(), lr=0.1)},
        "TypeError: optimizer_class: expected a class such as torch.optim.AdamW, not an instance",
    ),
    "LBFGS": (
        {"kind": optim.LBFGS},
        "ValueError: optimizer_class: expected one that treats each element alone, as SGD and Adam "
        "do, got LBFGS, which takes products",
    ),
    "Lamb": ({"kind": Lamb}, "got Lamb, which scales by the norm"),
    "stage": (
        {"stage": 3},
        "ValueError: stage: expected 1 or 2, got 3; minidist.fully_shard is stage 3",
    ),
    "gradients": (
        {"gradients": "mean"},
        "ValueError: gradients: expected one of averaged, local, got 'mean'",
    ),
    "averaged in stage 2": (
        {"stage": 2, "gradients": "averaged"},
        "ValueError: gradients: expected 'local' with stage=2, which reduces them itself",
    ),
    "cap": (
        {"bucket_cap_mb": 0},
        "ValueError: bucket_cap_mb: expected a number of MiB above 0, got 0",
    ),
    "overlap": (
        {"overlap_with_ddp": True},
        "ValueError: overlap_with_ddp: expected False, got True",
    ),
    "lr": ({"lr": -1}, "ValueError: Invalid learning rate: -1"),
    "option": ({"beta": 1}, "TypeError: "),
    "nothing": ({"params": list}, "ValueError: optimizer got an empty parameter list"),
    "all frozen": (
        {"params": lambda: net().requires_grad_(False).parameters()},
        "ValueError: params: expected a parameter with requires_grad=True, all 2 are frozen",
    ),
    "twice": (
        {"params": twice},
        "ValueError: params: 'parameter 1 of group 0' and 'parameter 2 of group 0' are the same",
    ),
    "same memory": (
        {"params": same_memory},
        "ValueError: params: parameter 0 of group 0 and parameter 1 of group 0 share memory",
    ),
}


def test_bad_arguments_name_the_rank_and_what_was_expected() -> None:
    def run() -> dict[str, str]:
        found = {}
        for name, (wrong, _) in WRONG.items():
            options = {**wrong}
            make = options.pop("params", lambda: net().parameters())
            found[name] = build(make(), **options)
        return found

    for rank, found in enumerate(launch(run, 2)):
        for name, told in found.items():
            kind, _, what = WRONG[name][1].rpartition("Error: ")
            start = f"{kind}Error: rank {rank}: {NAME}" if kind else ""
            assert told.startswith(start), (name, told)
            assert f"rank {rank}: {NAME}" in told
            assert what in told, (name, told)


def test_what_is_refused_leaves_parameters_where_they_are() -> None:
    def run() -> None:
        model = net()
        before = [p.data_ptr() for p in model.parameters()]
        build(model.parameters(), lr=-1)
        assert before == [p.data_ptr() for p in model.parameters()]
        assert all(holder_of(p) is None for p in model.parameters())
        zero = ZeroOptimizer([model[0].weight], SGD, stage=2, lr=0.1)
        for wrong in ([torch.zeros(2)], [model[0].weight], same_memory()):
            with pytest.raises((TypeError, ValueError)):
                zero.add_param_group({"params": wrong})
        assert len(zero.param_groups) == len(zero.inner.param_groups) == 1
        assert before[1] == model[0].bias.data_ptr()

    launch(run, 2)


def test_what_is_built_later_takes_over_and_the_one_before_refuses_to_step() -> None:
    """As when a notebook's cell is run again, while something still refers to the first."""

    def run() -> list[str]:
        found = []
        for options in ({"stage": 2}, {"gradients": "local"}):
            twins = Twins(net, kind=SGD, lr=0.1, momentum=0.9)
            first = twins.zero
            twins.backward(squares, 0)
            twins.step()
            state = first.full_state_dict()
            second = ZeroOptimizer(twins.net.parameters(), SGD, lr=1, **options)
            second.load_full_state_dict(state)
            twins.zero = second
            assert holder_of(twins.net[0].weight) is second
            for step in (1, 2):
                twins.backward(squares, step)
                found.append(refused(first.step))
                twins.step()
            assert twins.apart() == ""
        ddp = DistributedDataParallel(net())
        return [*found, build(ddp.parameters(), stage=2)]

    *old, wrapped = launch(run, 2)[1]
    for told in old:
        assert told == (
            "rank 1: ZeroOptimizer, averaging: another ZeroOptimizer was built on its parameters, "
            "and has taken over; use that one"
        )
    assert "the gradient of 'parameter 0 of group 0' is averaged by DistributedDataP" in wrapped


def test_ranks_that_differ_hear_of_the_first_difference() -> None:
    def told(make: Callable[[int], Any]) -> str:
        return refused(lambda: make(dist.get_rank()), MismatchError)

    def zero(params: Any, kind: Any = Adam, **options: Any) -> ZeroOptimizer:
        return ZeroOptimizer(params, kind, **{"stage": 2, "lr": 0.1, **options})

    def groups(rank: int) -> Any:
        every = list(mlp(4, 3, 2).parameters())
        cut = 2 + (rank == 2)
        return zero([{"params": every[:cut]}, {"params": every[cut:]}])

    def own_or_told() -> str:
        if dist.get_rank() == 1:
            return build(net().parameters(), stage=2, lr=-1)
        return told(lambda _: zero(net().parameters()))

    def run() -> list[str]:
        return [
            told(lambda rank: zero(mlp(4, 3 + (rank == 1)).named_parameters())),
            told(lambda rank: zero(net().named_parameters(), lr=0.1 if rank else 0.2)),
            told(groups),
            told(lambda rank: zero(net().parameters(), stage=1 + rank % 2)),
            own_or_told(),
        ]

    shape, lr, cut, stage, own = launch(run, 3)[0]
    assert shape == (
        "the ranks' optimizers differ: rank 1 has 0.weight in group 0, (4, 4), torch.float64 on "
        "cpu, requires grad; ranks 0, 2 have 0.weight in group 0, (3, 4), torch.float64 on cpu, "
        "requires grad"
    )
    assert "rank 0 has group 0 of Adam with" in lr
    assert "lr=0.2" in lr
    assert "rank 2 has parameter 2 of group 0 in group 0, (2, 3)" in cut
    assert stage.startswith("ZeroOptimizer: the ranks disagree on stage: rank 1 passed 2")
    assert own == "ZeroOptimizer: on rank 1: Invalid learning rate: -1"


def test_a_rate_that_one_rank_alone_changes_is_noticed_at_the_step() -> None:
    """Each rank steps on its own slices: weights would still be alike, and wrong."""

    def run() -> str:
        model = net()
        zero = ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1)
        squares(model, dist.get_rank(), 0).backward()
        zero.param_groups[0]["lr"] = 0.1 / (1 + dist.get_rank())
        return refused(zero.step, MismatchError)

    told = launch(run, 3)[0]
    assert told.startswith(
        "ZeroOptimizer.step: the ranks disagree on the hyper-parameters of group 0: rank 0 passed "
    )
    assert "lr=0.05, " in told


def test_stage_1_that_is_not_on_ddp_is_noticed_at_its_first_step() -> None:
    """Its replicas would be alike after the step, of gradients that nobody has averaged."""

    def run() -> str:
        model = net()
        zero = ZeroOptimizer(model.parameters(), SGD, lr=0.1)
        squares(model, dist.get_rank(), 0).backward()
        return refused(zero.step, MismatchError)

    told = launch(run, 2)[0]
    assert told.startswith(
        "ZeroOptimizer.step: the ranks disagree on the gradients, which DDP makes alike "
        "(without it pass gradients='local'): rank 0 passed "
    )


def moved(model: Any, zero: Any) -> None:
    model.float()


def exchanged(model: Any, zero: Any) -> None:
    zero.param_groups[0]["params"][1] = nn.Parameter(torch.zeros(3))


def appended(model: Any, zero: Any) -> None:
    zero.param_groups.append({"params": [nn.Parameter(torch.zeros(3))], "lr": 1})


CHANGES: dict[Callable[..., None], str] = {
    moved: "0.bias was given other memory after the ZeroOptimizer was built, as .to()",
    exchanged: "the parameters in param_groups were changed after the ZeroOptimizer was built",
    appended: "the parameters in param_groups were changed after the ZeroOptimizer was built",
}


def test_parameters_that_are_not_what_they_were() -> None:
    def run() -> list[tuple[str, str]]:
        found = []
        for change, what in CHANGES.items():
            for gradients in ("averaged", "local"):
                model = net()
                zero = ZeroOptimizer(model.named_parameters(), SGD, gradients=gradients, lr=0.1)
                change(model, zero)
                squares(model, 0, 0).backward()
                found.append((refused(zero.step), what))
        return found

    for told, what in launch(run, 2)[1]:
        assert told.startswith("rank 1: ZeroOptimizer")
        assert what in told


def test_a_backward_that_raised_is_not_stepped_on_nor_followed_by_another() -> None:
    def run() -> list[str]:
        found = []
        model = mlp(4, 4, 4)
        zero = ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1, bucket_cap_mb=1e-6)

        def fail(_: Any) -> None:
            raise ZeroDivisionError

        hook = model[0].weight.register_hook(fail)
        refused(lambda: squares(model, 0, 0).backward(), ZeroDivisionError)
        hook.remove()
        found.append(refused(zero.step))
        found.append(refused(lambda: squares(model, 0, 0).backward()))
        again = ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1)
        squares(model, 0, 1).backward()
        again.step()
        return found

    for told in launch(run, 2)[1]:
        assert told == (
            "rank 1: ZeroOptimizer, averaging: it is out of step with the other ranks: its last "
            "backward raised, so its gradients were not averaged, or not all. Zero the gradients "
            "and build the optimizer anew, on all ranks"
        )


def test_a_step_inside_backward_and_sparse_gradients() -> None:
    def run() -> list[str]:
        model = mlp(4, 4)
        zero = ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1)
        model[0].weight.register_post_accumulate_grad_hook(lambda _: zero.step())
        found = [refused(lambda: squares(model, 0, 0).backward())]

        table = nn.Embedding(5, 3, sparse=True)
        for stage in (1, 2):
            sparse = ZeroOptimizer(
                table.named_parameters(), SGD, stage=stage, gradients="local", lr=0.1
            )

            def train(sparse: Any = sparse) -> None:
                table(torch.tensor([1, 2])).sum().backward()
                sparse.step()

            found.append(refused(train, TypeError))
            table.zero_grad()
        return found

    step, *sparse = launch(run, 2)[0]
    assert "its backward is still under way" in step
    for told in sparse:
        assert told == (
            "rank 0: ZeroOptimizer: expected a dense gradient of weight, got layout "
            "torch.sparse_coo; build its module with sparse=False"
        )


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


def test_a_checkpointed_layer_that_is_used_twice() -> None:
    """Its parameters get two gradients in one backward, if it is of the reentrant kind."""

    def run() -> list[str]:
        def loss(model: Any, rank: int, step: int) -> torch.Tensor:
            return model(numbers(rank, step, 3, 4)).square().mean()

        kinds = [(False, 1e-6), (True, 25), (True, 1e-6)]  # in the last, its bucket has left
        return [
            Twins(lambda how=how: Twice(how), bucket_cap_mb=cap).train(loss).apart()
            for how, cap in kinds
        ]

    assert launch(run, 2) == [[""] * 3] * 2


class Constant(torch.autograd.Function):
    """A product whose backward has no gradient for the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return gradients[0] @ weight.t(), None


class WithConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(4, 4), mlp(4, 2)
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Constant.apply(self.first(x), self.weight))


def four(model: Any, rank: int, step: int) -> torch.Tensor:
    return model(numbers(rank, step, 3, 4)).square().mean()


def test_a_backward_that_returns_none_or_a_hook_that_takes_a_gradient_away_is_no_gradient() -> None:
    """As in one process: the parameter is left alone, also by weight decay."""

    def steal(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def robbed() -> nn.Module:
        model = WithConstant()
        model.first[0].bias.register_post_accumulate_grad_hook(steal)
        return model

    def run() -> list[str]:
        found = []
        for cap in (1e-6, 25):
            options = {"bucket_cap_mb": cap, "lr": 0.1, "weight_decay": 0.5}
            for mode in LOCAL:
                found.append(Twins(WithConstant, mode, **options).train(four).apart())
            twins = Twins(robbed, "stage 2", **options)
            twins.alone.first[0].bias.register_post_accumulate_grad_hook(steal)
            found.append(twins.train(four).apart())
        return found

    assert launch(run, 2) == [[""] * 6] * 2


def test_a_pickle_is_refused_and_a_step_that_one_rank_skips_is_told() -> None:
    def run() -> str:
        zero = ZeroOptimizer(net().parameters(), SGD, stage=2, lr=0.1)
        return refused(lambda: pickle.dumps(zero), TypeError)

    assert launch(run, 1)[0].startswith(
        "rank 0: a ZeroOptimizer cannot be copied or pickled: its buckets and its process group"
    )

    def skips() -> None:
        model = net()
        zero = ZeroOptimizer(model.parameters(), SGD, stage=2, lr=0.1)
        squares(model, 0, 0).backward()
        if dist.get_rank() == 0:
            zero.step()
        else:
            squares(model, 0, 1).backward()

    with pytest.raises(RankError, match="disagree on the call"):
        launch(skips, 2)


def scaled(stage: int, gradients: str) -> Any:
    """Steps with loss scaling, in which rank 1 alone meets an infinite loss at step 1."""
    model: nn.Module = net()
    if gradients == "averaged":
        model = DistributedDataParallel(model)
    zero = ZeroOptimizer(model.parameters(), SGD, stage=stage, gradients=gradients, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen = []
    for step in range(2):
        zero.zero_grad()
        loss = squares(model, dist.get_rank(), step)
        scaler.scale(loss * (float("inf") if (dist.get_rank(), step) == (1, 1) else 1)).backward()
        if gradients == "local":
            return refused(lambda: scaler.step(zero))
        seen.append(scaled_step(scaler, zero))
    return seen


def test_a_loss_scaler_works_on_ddps_gradients_and_is_refused_on_local_ones() -> None:
    assert launch(scaled, 2, 1, "averaged") == [[(8.0, True), (4.0, False)]] * 2
    for stage in (1, 2):
        for rank, told in enumerate(launch(scaled, 2, stage, "local")):
            assert told.startswith(f"rank {rank}: ZeroOptimizer: a GradScaler divides")
