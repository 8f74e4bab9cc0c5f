"""A model on the meta device comes into being, a unit at a time."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import (
    full_gradients,
    full_state_dict,
    fully_shard,
    launch,
    load_full_state_dict,
    materialize,
)
from minidist.memory.meter import measured
from tests.full_model.test_state_dict import difference
from tests.support.models import F64, Net, hybrid, loss, units

WIDE = 64


class Made(Net):
    """With a method for what is its own."""

    def reset_parameters(self) -> None:
        for parameter in (self.tiny, self.unused):
            nn.init.normal_(parameter)
        self.seen.fill_(4)
        self.shift = torch.rand_like(self.shift)  # another tensor in its place


def on_meta(build: Callable[[], nn.Module]) -> Any:
    with torch.device("meta"):
        return build()


WAYS: dict[str, Callable[[Net], nn.Module]] = {
    "units": units,
    "kept whole after forward": lambda net: units(net, reshard_after_forward=False),
    "hybrid": hybrid,
    "only blocks": lambda net: units(net, root=False),
}


def by_rank(part: nn.Module) -> None:
    """Other numbers on each rank, and in each tensor."""
    own = dict(part.named_parameters(recurse=False)) | dict(part.named_buffers(recurse=False))
    for place, (name, tensor) in enumerate(own.items()):
        tensor.fill_(dist.get_rank() * 1000 + 10 * len(name) + place)


def everything(model: nn.Module) -> dict[str, Any]:
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name == "shift"}
    return full_state_dict(model) | unsaved


def make(wrap: Callable[[Net], nn.Module], init: Any) -> tuple[nn.Module, dict[str, Any]]:
    model = wrap(on_meta(Made))
    frozen = [each for each, p in model.named_parameters() if not p.requires_grad]
    materialize(model, init=init)
    assert frozen == [each for each, p in model.named_parameters() if not p.requires_grad]
    assert not any(p.is_meta for p in model.parameters())
    return model, everything(model)


def train(model: nn.Module, state: dict[str, Any]) -> str:
    """Beside one process, from the same state."""
    rank, net = dist.get_rank(), Net(0)
    net.shift = state.pop("shift").clone()
    net.load_state_dict(state)
    loss(model, rank).backward()
    torch.stack([loss(net, each) for each in range(dist.get_world_size())]).mean().backward()
    want = {each: parameter.grad for each, parameter in net.named_parameters()}
    wrong = difference(full_gradients(model), want, 1e-12)
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.optim.SGD(net.parameters(), 0.1).step()
    return wrong + difference(full_state_dict(model), net.state_dict(), 1e-12)


def test_all_ranks_get_what_rank_0_has_made_and_can_train_it() -> None:
    def alone() -> dict[str, Any]:
        return make(lambda net: net, by_rank)[1]

    def run() -> list[Any]:
        found = []
        for name, wrap in WAYS.items():
            _, told = make(wrap, by_rank)
            model, drawn = make(wrap, None)
            wrong = "" if name == "only blocks" else train(model, dict(drawn))
            found.append((told, drawn, wrong))
        return found

    (want,) = launch(alone, 1)
    assert want["blocks.1.norm.weight"].tolist() == [60] * 5
    for name, by in zip(WAYS, zip(*launch(run, 4), strict=True), strict=True):
        first = by[0][1]
        for told, drawn, wrong in by:
            assert (difference(told, want), difference(drawn, first), wrong) == ("", "", ""), name
        numbers = [value for value in first.values() if isinstance(value, torch.Tensor)]
        assert all(value.isfinite().all() for value in numbers), name
        assert first["blocks.0.norm.weight"].tolist() == [1] * 5, name
        assert first["seen"].item() == 4, name
        assert first["blocks.0.up.weight"].abs().max() <= 5**-0.5, name
        assert len({tuple(value.flatten().tolist()) for value in numbers}) > 12, name


def test_one_unit_is_whole_at_a_time_and_a_saved_state_goes_in_where_nobody_initialises() -> None:
    def run() -> None:
        net = units(on_meta(Net))
        said = f"^rank {dist.get_rank()}: materialize: FSDPNet has tiny, unused, seen, shift of its"
        with pytest.raises(ValueError, match=f"{said} own and no method reset_parameters; write"):
            materialize(net)
        assert all(p.is_meta for p in net.parameters())
        materialize(net, init=lambda part: None)
        load_full_state_dict(net, Net(0).state_dict())
        assert difference(full_state_dict(net), Net(0).state_dict()) == ""

        block = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4)))
        whole = sum(p.nbytes for p in block.parameters())
        deep = nn.Sequential(*(copy.deepcopy(block).to("meta") for _ in range(6)))
        for each in (*deep, deep):
            fully_shard(each)
        curve = measured(lambda: materialize(deep))
        storages = {p.untyped_storage()._cdata: p.untyped_storage() for p in deep.parameters()}
        shards = sum(storage.nbytes() for storage in storages.values())
        assert shards + whole <= curve.peak - curve.start < shards + 1.1 * whole

    launch(run, 2)


def test_torchs_own_modules_and_what_is_there_already() -> None:
    layers = lambda: nn.ModuleList([nn.MultiheadAttention(4, 2), nn.BatchNorm1d(3), nn.LSTM(3, 2)])  # noqa: E731
    net = on_meta(layers)
    there = nn.Linear(3, 3, dtype=F64)
    before = there.weight.clone()
    net.append(there)
    torch.manual_seed(0)
    materialize(net, "cpu")
    assert torch.equal(there.weight, before)
    attention, norm, recurrent, _ = net
    assert attention.out_proj.bias.tolist() == [0] * 4
    assert norm.running_var.tolist() == [1] * 3
    assert norm.num_batches_tracked.item() == 0
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())
    assert recurrent(torch.ones(4, 3))[0].isfinite().all()  # it keeps a list of its weights
    first = net.state_dict()
    materialize(net, "cpu")  # nothing is left to do
    assert all(value is net.get_parameter(name) for name, value in net.named_parameters())
    assert difference(net.state_dict(), first) == ""
