"""What looks at a whole model, on one rank in this process: what does not take several."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import (
    DistributedDataParallel,
    ZeroOptimizer,
    clip_grad_norm_,
    full_gradients,
    full_state_dict,
    fully_shard,
    load_full_state_dict,
)
from minidist.parallel.full_model.full_model import comms
from tests.support.training import far, grads_of


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Two dtypes, parameters that are never used beside others that are, and an integer buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2, dtype=torch.float64)
        self.unused = nn.Linear(2, 2, dtype=torch.float64)
        self.register_buffer("steps", torch.tensor(seed + 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).double())


def trained(net: Any) -> Any:
    net(torch.arange(6.0).view(2, 3)).square().sum().backward()
    return net


def units(net: Net) -> Any:
    fully_shard(net.a)
    return fully_shard(net)


WRAPPED = {
    "bare": lambda net: net,
    "ddp": DistributedDataParallel,
    "torch's ddp": nn.parallel.DistributedDataParallel,
    "units": units,
}


def test_a_state_is_a_copy_and_loads_whatever_is_around_it() -> None:
    for way, wrap in WRAPPED.items():
        net: Any = wrap(Net())
        state = full_state_dict(net)
        assert far(state, Net().state_dict()) == "", way
        assert [*state._metadata] == [*Net().state_dict()._metadata], way
        assert not any("shards" in each for each in state._metadata.values()), way  # nobody's now
        for value in state.values():
            value.fill_(1)
        assert far(full_state_dict(net), Net().state_dict()) == "", f"{way}: it was a copy"
        other = Net(seed=1).state_dict()
        load_full_state_dict(net, {f"module.{name}": value for name, value in other.items()})
        assert far(full_state_dict(net), other) == "", way
        there = full_state_dict(net, device="meta")
        assert {value.device.type for value in there.values()} == {"meta"}, way


def test_a_model_without_values_takes_none_and_a_list_is_no_state() -> None:
    with torch.device("meta"):
        net = Net()
    with pytest.raises(ValueError, match=r"'\w+\S*': is on the meta device; call minidist\.mat"):
        load_full_state_dict(net, Net().state_dict())
    with pytest.raises(ValueError, match="expected a dict, got a list"):
        load_full_state_dict(Net(), [])  # type: ignore[arg-type]


def test_the_norm_is_torch_s_in_the_widest_dtype() -> None:
    offenders = []
    for case in product(["bare", "units"], [1.0, 2.0, 3.0, math.inf], [0.0, 0.5, 1e9]):
        way, kind, most = case
        right = trained(Net())
        want = nn.utils.clip_grad_norm_(right.parameters(), most, kind)
        net = trained(WRAPPED[way](Net()))
        norm = far({"norm": clip_grad_norm_(net, most, kind)}, {"norm": want.double()}, 1e-7)
        if said := norm or far(full_gradients(net), grads_of(right), 1e-6):
            offenders.append(f"{case}: {said}")
    assert not offenders, "\n".join(offenders)


def test_the_norm_of_small_floats_is_in_float32_and_of_nothing_zero() -> None:
    net = nn.Linear(3, 2, dtype=torch.bfloat16)
    assert clip_grad_norm_(net, 1.0).item() == 0.0
    net(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    found = clip_grad_norm_(net, 100.0)
    assert (found.dtype, found.item()) == (torch.float32, pytest.approx(math.sqrt(8), rel=0.01))
    for bad in ((-1.0, 2.0), (1.0, 0.0), (math.nan, 2.0)):
        with pytest.raises(ValueError, match="expected max_norm >= 0 and norm_type > 0, got"):
            clip_grad_norm_(net, *bad)


def test_each_group_of_ranks_is_named_once_and_a_part_of_a_unit_is_refused() -> None:
    assert comms(Net()) == []
    ddp = DistributedDataParallel(Net())
    zero = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, process_group=dist.new_group())
    assert comms(ddp) == [ddp.comm, zero.comm]
    net = Net()
    fully_shard([net.a, net.b])
    assert len(comms(net)) == 1
    for part, call in ((net.a, full_state_dict), (net.b, partial(clip_grad_norm_, max_norm=1.0))):
        with pytest.raises(ValueError, match=r"expected all of a unit, got a part of one, which"):
            call(part)
    whole = units(Net())
    assert len(comms(whole)) == 1, "of two units in one group"
    with pytest.raises(ValueError, match=r"got a part of one: weight is .*'b.weight' of the outer"):
        full_gradients(whole.b)
    for wrong in (None, torch.ones(2), ddp.state_dict()):
        with pytest.raises(TypeError, match=r"module: expected a torch\.nn\.Module, got a"):
            full_state_dict(wrong)  # type: ignore[arg-type]
