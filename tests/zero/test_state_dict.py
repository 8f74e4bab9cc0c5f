"""The full state of a ZeroOptimizer, in torch's format: saved, loaded elsewhere, refused."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import SGD, Adam, AdamW

from minidist import MismatchError, ZeroOptimizer, launch
from tests.support.training import CAP, LOCAL, Twins, mlp, squares
from tests.zero.test_optimizer import by_decay, odd

KINDS: dict[type[optim.Optimizer], dict[str, Any]] = {
    optim.ASGD: {"lr": 0.01, "t0": 1.0},
    optim.Adadelta: {},
    optim.Adagrad: {"initial_accumulator_value": 0.1},
    optim.Adam: {"amsgrad": True, "foreach": True},
    optim.AdamW: {"fused": True},
    optim.Adamax: {},
    optim.NAdam: {"decoupled_weight_decay": True, "weight_decay": 0.1},
    optim.RAdam: {"maximize": True},
    optim.RMSprop: {"momentum": 0.9, "centered": True},
    optim.Rprop: {},
    optim.SGD: {"lr": 0.1},
}


class Scalars(nn.Module):
    """Parameters that are numbers: their moments are too, and are told from counts of steps."""

    def __init__(self) -> None:
        super().__init__()
        two, three = torch.tensor([2.0, 3.0], dtype=torch.float64)
        self.a, self.b = nn.Parameter(two.clone()), nn.Parameter(three.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a * self.b * x


def product(model: Any, rank: int, step: int) -> torch.Tensor:
    return model(torch.tensor(rank + step + 1))


def test_every_optimizer_that_treats_elements_alone_is_sharded_saved_and_loaded() -> None:
    def run() -> dict[str, str]:
        found = {}
        for number, (kind, options) in enumerate(KINDS.items()):
            for build, loss in ((odd, squares), (Scalars, product)):
                twins = Twins(build, LOCAL[number % 2], kind, **options or {"lr": 0.01})
                twins.train(loss)
                twins.zero.load_full_state_dict(twins.bare.state_dict())
                twins.bare.load_state_dict(twins.zero.full_state_dict())
                twins.zero.load_state_dict(twins.zero.full_state_dict())
                wrong = twins.train(loss, [3, 4]).apart(1e-9)
                found[f"{kind.__name__}, {build.__name__}"] = wrong
        return {name: wrong for name, wrong in found.items() if wrong}

    assert launch(run, 3) == [{}] * 3


def trained(steps: range, into: nn.Module, zero: Any, ranks: int) -> None:
    """As if there were always 6 shards, whatever the number of ranks."""
    each = 6 // ranks
    first = each * dist.get_rank()
    for step in steps:
        zero.zero_grad()
        for shard in range(first, first + each):
            with zero.no_sync():
                (squares(into, shard, step) / each).backward()
        zero.step()


def test_a_whole_state_goes_from_two_ranks_to_three_to_one_and_into_a_bare_optimizer(
    tmp_path: Path,
) -> None:
    """By files, as anybody saves; the training is that without a break."""

    def run(steps: range, saved: Path | None, target: Path | None, cap: float) -> Any:
        torch.manual_seed(1)
        net = odd()
        zero = ZeroOptimizer(by_decay(net), AdamW, stage=2, lr=0.02, bucket_cap_mb=cap)
        if saved:
            found = torch.load(saved, weights_only=True)
            net.load_state_dict(found["net"])
            zero.load_full_state_dict(found["zero"])
            assert zero.param_groups[0]["lr"] == 0.01
        zero.param_groups[0]["lr"] = 0.01
        trained(steps, net, zero, dist.get_world_size())
        whole = {"net": net.state_dict(), "zero": zero.full_state_dict(device="cpu")}
        if target and dist.get_rank() == 0:
            torch.save(whole, target)
        return whole if dist.get_rank() == 0 else None

    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    launch(run, 2, range(2), None, first, CAP)
    launch(run, 3, range(2, 4), first, second, 10 * CAP)
    (got,) = launch(run, 1, range(4, 6), second, None, CAP)
    (want,) = launch(run, 1, range(6), None, None, CAP)
    for name, value in want["net"].items():
        torch.testing.assert_close(got["net"][name], value, rtol=1e-11, atol=1e-11)
    for number, kept in want["zero"]["state"].items():
        for key, value in kept.items():
            torch.testing.assert_close(got["zero"]["state"][number][key], value)
    assert got["zero"]["param_groups"] == want["zero"]["param_groups"]

    net = odd()
    bare = AdamW(by_decay(net), lr=0.5)
    bare.load_state_dict(got["zero"])
    squares(net, 0, 0).backward()
    bare.step()
    assert bare.param_groups[0]["lr"] == 0.01
    assert all(float(state["step"]) == 7 for state in bare.state.values())


def test_state_is_there_only_of_what_was_stepped_on() -> None:
    def run() -> dict[str, Any]:
        net = odd()
        net[0].requires_grad_(False)
        zero = ZeroOptimizer(net.named_parameters(), Adam, stage=2, lr=0.1)
        fresh = zero.full_state_dict()
        assert fresh == Adam(net.named_parameters(), lr=0.1).state_dict()
        zero.load_full_state_dict(fresh)
        squares(net, 0, 0).backward()
        zero.step()
        return zero.full_state_dict()

    for state in launch(run, 2):
        assert list(state["state"]) == [2, 3, 4, 5]
        names = [f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")]
        assert state["param_groups"][0]["param_names"] == names


# ---- what is refused ----


def test_what_cannot_be_loaded_is_named_and_nothing_of_it_is_loaded() -> None:
    another = "AdamW cannot step with its parameter groups "
    no_state = "expected a dict with 'state' and 'param_groups', got "
    lacking = "0.weight: expected 'exp_avg_sq' in its state, got ['step', 'exp_avg']"

    def run() -> None:
        twins = Twins(odd, groups=lambda net: net.named_parameters()).train(steps=[0])
        full, rank = twins.zero.full_state_dict(), dist.get_rank()

        def refused(state: Any, problem: str, where: str = f"rank {rank}: ") -> None:
            said = f"{where}{problem}"
            with pytest.raises((TypeError, ValueError, MismatchError), match=f"^{re.escape(said)}"):
                twins.zero.load_full_state_dict(state)

        number, incomplete = copy.deepcopy(full), copy.deepcopy(full)
        number["state"][1]["exp_avg"] = 0.5
        del incomplete["state"][0]["exp_avg_sq"]
        sgd = Twins(odd, kind=SGD, lr=0.1, momentum=0.9).train(steps=[0])
        other = Twins(lambda: mlp(5, 6, 3, 1)).train(steps=[0]).bare.state_dict()
        load = "ZeroOptimizer.load_full_state_dict: "
        for state, problem in (
            (other, "0.weight: expected 'exp_avg' of shape (7, 5), got (6, 5): it is that of"),
            (AdamW(mlp(5, 7, 1).parameters()).state_dict(), f"{another}(ValueError("),
            (AdamW(by_decay(odd())).state_dict(), f"{another}(ValueError("),
            ([1], f"{no_state}[1]"),
            ({"0.bias": 1}, f"{no_state}{{'0.bias': 1}}"),
            (incomplete, lacking),
            (number, "0.bias: expected 'exp_avg' of shape (7,), got a float: it is that of anoth"),
            (sgd.zero.full_state_dict(), f"{another}(KeyError('betas')): they are anoth"),
        ):
            refused(state, f"{load}state_dict: {problem}")
        if rank:
            refused(incomplete, f"{load}state_dict: {lacking}")
        else:
            refused(full, f"on rank 1: state_dict: {lacking}", load)
        assert twins.train(steps=[1]).apart() == ""

    launch(run, 2)
