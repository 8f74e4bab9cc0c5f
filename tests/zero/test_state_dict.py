"""What a ZeroOptimizer saves: whole, in torch's format, or each rank its own; and what it loads."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import SGD, Adam, AdamW

from minidist import Counted, Ours, ZeroOptimizer, launch
from tests.support.training import mlp
from tests.support.zero_training import CAP, LOCAL, Twins, squares
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


def test_every_optimizer_that_treats_elements_alone_can_be_cut() -> None:
    def run() -> dict[str, str]:
        found = {}
        for number, (kind, options) in enumerate(KINDS.items()):
            mode = LOCAL[number % 2]
            twins = Twins(odd, mode, kind, **options or {"lr": 0.01})
            found[kind.__name__] = twins.train().apart(1e-9)
            twins.zero.load_full_state_dict(twins.bare.state_dict())
            twins.bare.load_state_dict(twins.zero.full_state_dict())
            twins.zero.load_state_dict(twins.zero.state_dict())
            found[f"{kind.__name__}, loaded"] = twins.train(steps=[3, 4]).apart(1e-9)
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


def test_a_ranks_own_state_goes_through_a_file_and_back() -> None:
    def run() -> str:
        twins = Twins(odd).train(steps=[0, 1])
        file = io.BytesIO()
        torch.save(twins.zero.state_dict(), file)
        before = copy.deepcopy(twins.net.state_dict())
        twins.train(steps=[2])
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        owned = sum(e - s for part in twins.zero.parts for s, e in part.flat.ranges())
        moments = [v for kept in saved["state"].values() for v in kept.values() if v.dim()]
        assert sum(map(len, moments)) == 2 * owned
        twins.net.load_state_dict(before)
        twins.zero.load_state_dict(saved)
        for kept in saved["state"].values():  # is not what the optimizer holds
            kept["exp_avg"].fill_(100)
        for step in (2, 3):
            squares(twins.net, dist.get_rank(), step).backward()
            twins.zero.step()
        twins.whole(squares, 3)
        twins.bare.step()
        return twins.apart()

    assert launch(run, 2) == [""] * 2


class Scalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        two, three = torch.tensor([2.0, 3.0], dtype=torch.float64)
        self.a, self.b = nn.Parameter(two.clone()), nn.Parameter(three.clone())

    def forward(self) -> torch.Tensor:
        return self.a * self.b


def test_parameters_that_are_numbers_keep_moments_that_are() -> None:
    """Which are told from counts of steps by what else is there, or by their names."""

    def run() -> list[str]:
        def product(model: Any, rank: int, step: int) -> torch.Tensor:
            return model() * (rank + step + 1)

        found = []
        for kind in (Adam, optim.NAdam, optim.ASGD):
            twins = Twins(Scalars, "stage 1", kind, lr=0.01).train(product)
            twins.zero.load_full_state_dict(twins.bare.state_dict())
            twins.bare.load_state_dict(twins.bare.state_dict())  # torch casts what it loads
            found.append(twins.train(product, [3, 4]).apart(1e-10))
        return found

    assert launch(run, 3) == [[""] * 3] * 3


def test_the_whole_state_may_be_put_elsewhere_and_moves_what_it_must() -> None:
    """All moments once round, part by part; besides, what ranks keep, in a few bytes."""

    def run() -> list[int]:
        comm = Counted(Ours(algorithm="ring"))
        twins = Twins(odd, comm=comm).train(steps=[0])
        comm.clear()
        state = twins.zero.full_state_dict(device="cpu")["state"]
        assert all(value.device.type == "cpu" for kept in state.values() for value in kept.values())
        storages = [v.untyped_storage().nbytes() for k in state.values() for v in k.values()]
        assert storages == [v.nbytes for k in state.values() for v in k.values()]
        names, sizes = zip(*comm.calls, strict=True)
        assert set(names) == {"all_gather"}
        return [list(sizes[2:]), [p.flat.padded * 8 for p in twins.zero.parts for _ in range(2)]]

    for got, want in launch(run, 2):
        assert got == want


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


def wrong(load: Callable[[Any], Any], state: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as told:
        load(state)
    return f"{type(told.value).__name__}: {told.value}"


def test_what_cannot_be_loaded_is_named_and_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    def save() -> None:
        twins = Twins(odd).train(steps=[0])
        torch.save(twins.zero.state_dict(), tmp_path / f"{dist.get_rank()}.pt")

    launch(save, 3)

    def run() -> dict[str, str]:
        rank = dist.get_rank()
        twins = Twins(odd, groups=lambda net: net.named_parameters()).train(steps=[0])
        zero, before = twins.zero, copy.deepcopy(twins.zero.state_dict())
        other = Twins(lambda: mlp(5, 6, 3, 1)).train(steps=[0])
        fewer = Twins(lambda: mlp(5, 7, 1)).train(steps=[0])
        mixed = Twins(odd, groups=by_decay).train(steps=[0])
        whole = zero.full_state_dict()
        caps = Twins(odd, bucket_cap_mb=25).train(steps=[0])
        strange = copy.deepcopy(whole)
        strange["state"][99] = {}
        found = {
            "another model": wrong(zero.load_full_state_dict, other.zero.full_state_dict()),
            "bare one's": wrong(zero.load_full_state_dict, other.bare.state_dict()),
            "fewer": wrong(zero.load_full_state_dict, fewer.zero.full_state_dict()),
            "groups": wrong(zero.load_full_state_dict, mixed.zero.full_state_dict()),
            "own as whole": wrong(zero.load_full_state_dict, zero.state_dict()),
            "whole as own": wrong(zero.load_state_dict, whole),
            "no such": wrong(zero.load_full_state_dict, strange),
            "no dict": wrong(zero.load_full_state_dict, [1]),
            "weights": wrong(zero.load_state_dict, twins.net.state_dict()),
            "another's own": wrong(zero.load_state_dict, other.zero.state_dict()),
            "other parts": wrong(zero.load_state_dict, caps.zero.state_dict()),
            "of three": wrong(zero.load_state_dict, torch.load(tmp_path / f"{rank}.pt")),
        }
        after = zero.state_dict()
        for number, kept in before["state"].items():
            assert all(torch.equal(after["state"][number][key], kept[key]) for key in kept)
        return found

    where = "rank 1: state_dict: "
    assert launch(run, 2)[1] == {
        "another model": f"ValueError: {where}0.weight: expected 'exp_avg' of shape (7, 5), got "
        "(6, 5): it is that of another model",
        "bare one's": f"ValueError: {where}0.weight: expected 'exp_avg' of shape (7, 5), got "
        "(6, 5): it is that of another model",
        "fewer": f"ValueError: {where}group 0: expected 6 parameters, got 4: it is that of another "
        "model",
        "groups": f"ValueError: {where}expected 1 parameter groups, got 2",
        "own as whole": f"ValueError: {where}expected a whole one, got that of rank 1 alone; use "
        "load_state_dict, on as many ranks",
        "whole as own": f"ValueError: {where}expected one rank's own, as state_dict() gives it, "
        "got a whole one; use load_full_state_dict",
        "no such": f"ValueError: {where}expected state of the parameters 0 to 5, got some of 99",
        "no dict": f"TypeError: {where}expected a dict with 'state' and 'param_groups', got "
        "<class 'list'>",
        "weights": f"TypeError: {where}expected a dict with 'state' and 'param_groups', got "
        "['0.bias', '0.weight', '2.bias', '2.weight', '4.bias', '4.weight']",
        "another's own": f"ValueError: {where}0.weight: expected shape [7, 5], got [6, 5]: it is "
        "that of another model",
        "other parts": f"ValueError: {where}0.weight: expected elements [14, 35], got [0, 35]: "
        "bucket_cap_mb or the groups were others",
        "of three": f"ValueError: {where}expected that of rank 1 of 2, got that of rank 1 of 3; "
        "what full_state_dict() gives can be loaded on any number of ranks",
    }


def test_state_that_is_neither_a_number_nor_an_element_for_each_is_named() -> None:
    def run() -> str:
        twins = Twins(odd, kind=SGD, lr=0.1, momentum=0.9).train(steps=[0])
        first = next(iter(twins.zero.state))
        twins.zero.state[first]["rows"] = torch.zeros(2, 2)
        return wrong(lambda zero: zero.full_state_dict(), twins.zero)

    (told,) = launch(run, 1)
    assert "expected 'rows' in the optimizer's state to be a number or to have an element" in told
    assert told.startswith("TypeError: parameter 0 of group 0: ")
