"""A model on the meta device comes into being, a unit at a time."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidist import (
    full_gradients,
    full_state_dict,
    fully_shard,
    launch,
    load_full_state_dict,
    materialize,
)
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
    "dim0": units,
    "flat": lambda net: units(net, layout="flat"),
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


def make(default: bool) -> dict[str, Any]:
    found = {}
    for name, wrap in WAYS.items():
        model = wrap(on_meta(Made))
        materialize(model, init=None if default else by_rank)
        found[name] = everything(model)
    return found


def train() -> dict[str, str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = {}
    for name, wrap in WAYS.items():
        model = wrap(on_meta(Made))
        frozen = {each for each, p in model.named_parameters() if not p.requires_grad}
        materialize(model)
        wrong[name] = "" if frozen == {"frozen.weight", "frozen.bias"} else str(frozen)
        wrong[name] += str([each for each, p in model.named_parameters() if p.is_meta] or "")
        state, net = full_state_dict(model), Net(0)
        net.load_state_dict(state)
        net.shift = model.shift.clone()
        if name == "only blocks":
            continue
        loss(model, rank).backward()
        torch.stack([loss(net, each) for each in range(ranks)]).mean().backward()
        want = {each: parameter.grad for each, parameter in net.named_parameters()}
        wrong[name] += difference(full_gradients(model), want, 1e-12)
        torch.optim.SGD(model.parameters(), 0.1).step()
        torch.optim.SGD(net.parameters(), 0.1).step()
        wrong[name] += difference(full_state_dict(model), net.state_dict(), 1e-12)
    return wrong


def test_all_ranks_get_what_rank_0_has_made_and_can_train_it() -> None:
    def alone() -> dict[str, Any]:
        net = on_meta(Made)
        materialize(net, init=by_rank)
        return everything(net)

    (want,) = launch(alone, 1)
    assert want["blocks.1.norm.weight"].tolist() == [60] * 5
    ranks = launch(lambda: (make(False), make(True), train()), 4)
    for rank, (told, _, wrong) in enumerate(ranks):
        for name, got in told.items():
            assert difference(got, want) == "", f"rank {rank}, {name}"
        assert wrong == dict.fromkeys(WAYS, "")
    by_default([made for _, made, _ in ranks])


def by_default(ranks: list[dict[str, Any]]) -> None:
    first, *others = ranks
    for other in others:
        for name, got in other.items():
            assert difference(got, first[name]) == "", name
    for name, state in first.items():
        numbers = {each: value for each, value in state.items() if isinstance(value, torch.Tensor)}
        assert all(value.isfinite().all() for value in numbers.values()), name
        assert state["blocks.0.norm.weight"].tolist() == [1] * 5, name
        assert state["seen"].item() == 4, name
        assert state["blocks.0.up.weight"].abs().max() <= 5**-0.5, name
        assert len({tuple(value.flatten().tolist()) for value in numbers.values()}) > 12, name


def test_a_saved_state_goes_into_a_model_that_was_never_initialised() -> None:
    def run() -> str:
        net = units(on_meta(Net))
        materialize(net, init=lambda part: None)
        if not full_state_dict(net)["blocks.0.up.weight"].isnan().all():
            return "memory that nobody has written looks like numbers"
        load_full_state_dict(net, Net(0).state_dict())
        return difference(full_state_dict(net), Net(0).state_dict())

    assert launch(run, 2) == [""] * 2


# ---- memory ----


class Live(TorchDispatchMode):
    """The bytes of all storages that were made within it and are still there; the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._there: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                storage = leaf.untyped_storage()
                self._there[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._there = {key: kept for key, kept in self._there.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._there.values()))
        return result


def peak(name: str) -> tuple[int, int, int]:
    """The most bytes held, those of the shards at the end, and those of the largest unit."""
    net = on_meta(
        lambda: nn.Sequential(
            *(nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4))) for _ in range(6))
        )
    )
    whole = max(sum(p.nbytes for p in block.parameters()) for block in net)
    for block in net:
        fully_shard(block, layout=name)
    fully_shard(net, layout=name)
    with Live() as live:
        materialize(net)
    kept = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in net.parameters()}
    return live.most, sum(kept.values()), whole


def test_no_rank_ever_has_more_than_one_unit_whole() -> None:
    for told in launch(lambda: [peak(layout) for layout in ("dim0", "flat")], 4):
        for most, shards, whole in told:
            assert most == shards + whole, told


# ---- what cannot be made ----


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.ones(2, 2), persistent=False)


class Grows(Scale):
    def reset_parameters(self) -> None:
        self.factor = nn.Parameter(torch.ones(4))
        self.mask.fill_(1)


def refused(part: type[nn.Module], init: Any = None) -> str:
    net = on_meta(lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(part(), nn.ReLU())))
    with pytest.raises(ValueError, match="materialize") as caught:
        materialize(net, "cpu", init)
    kept = all(tensor.is_meta for tensor in [*net[1].parameters(), *net[1].buffers()])
    return f"{caught.value}" if kept else "it was changed"


def test_what_nobody_initialises_is_named() -> None:
    assert refused(Scale) == (
        "materialize: expected a method reset_parameters of each submodule with parameters or "
        "buffers of its own, got none of 1.0 (Scale: factor, mask); write it, or pass init"
    )
    assert refused(Grows) == (
        "materialize: Grows.factor: expected (3,) torch.float32, got (4,) torch.float32 from its "
        "initialisation"
    )

    def removes(part: nn.Module) -> None:
        if hasattr(part, "mask"):
            del part.mask

    assert refused(Scale, removes) == (
        "materialize: Scale.mask: expected (2, 2) torch.float32, got nothing from its "
        "initialisation"
    )


def test_on_ranks_the_message_has_the_rank_and_the_model_is_still_on_meta() -> None:
    def run() -> tuple[str, bool]:
        net = units(on_meta(Net))  # the root has no method
        with pytest.raises(ValueError, match="materialize") as caught:
            materialize(net)
        return str(caught.value), all(p.is_meta for p in net.parameters())

    for rank, (told, meta) in enumerate(launch(run, 2)):
        got = "got none of the root (FSDPNet: tiny, unused, seen, shift)"
        assert re.match(f"^rank {rank}: materialize: .*{re.escape(got)}", told)
        assert meta


def test_torchs_own_modules_and_what_is_there_already() -> None:
    net = on_meta(
        lambda: nn.ModuleList(
            [
                nn.MultiheadAttention(4, 2),
                nn.BatchNorm1d(3),
                nn.Embedding(5, 4, padding_idx=1),
                nn.Conv2d(2, 3, 3, dtype=torch.bfloat16),
                nn.LSTM(3, 2),
            ]
        )
    )
    there = nn.Linear(3, 3, dtype=F64)
    before = there.weight.clone()
    net.append(there)
    torch.manual_seed(0)
    materialize(net, "cpu")
    assert torch.equal(there.weight, before)
    attention, norm, embedding, _, recurrent, _ = net
    assert attention.out_proj.bias.tolist() == [0] * 4
    assert norm.running_var.tolist() == [1] * 3
    assert norm.num_batches_tracked.item() == 0
    assert embedding.weight[1].tolist() == [0] * 4
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())
    assert recurrent(torch.ones(4, 3))[0].isfinite().all()  # it keeps a list of its weights
    first = net.state_dict()
    materialize(net, "cpu")  # nothing is left to do
    assert all(value is net.get_parameter(name) for name, value in net.named_parameters())
    assert difference(net.state_dict(), first) == ""
