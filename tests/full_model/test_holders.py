"""A fourth wrapper: what looks at a whole model knows it by what it offers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from minidist import (
    clip_grad_norm_,
    full_gradients,
    full_state_dict,
    fully_shard,
    launch,
    load_full_state_dict,
)
from minidist.comm.comm import Comm
from minidist.comm.ours import Ours
from minidist.parallel.holders import ShardedParams, hold
from minidist.parallel.sharding.layouts import RowLayout
from tests.support.training import far

F64 = torch.float64


class ColumnwiseLinear(nn.Module):
    """Each rank has some rows of the weight, and so computes some columns of the output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs, bias=False, dtype=F64).weight.detach()
        comm = Ours()
        self.comms: Sequence[Comm] = [comm]
        self.layout = RowLayout([whole.shape], comm.ranks, comm.rank)
        self.weight = nn.Parameter(self.layout.piece(0, whole).clone())
        self.weight.whole_shape = whole.shape  # type: ignore[attr-defined]
        self.weight.part_of = partial(self.layout.piece, 0)  # type: ignore[attr-defined]
        self.holder = Columns(self)
        hold(self.holder, [self])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mine = x @ self.weight.T
        others = torch.empty(self.comms[0].ranks, *mine.shape, dtype=F64)
        self.comms[0].all_gather(others, mine.detach().contiguous())
        parts = list(others)
        parts[self.comms[0].rank] = mine
        return torch.cat(parts, -1)


class Columns:
    """What the layer offers."""

    modules: Sequence[nn.Module] = ()

    def __init__(self, layer: ColumnwiseLinear) -> None:
        self.comms, self.layout, self.weight = layer.comms, layer.layout, layer.weight

    def sharded(self, gradients: bool) -> list[ShardedParams]:
        mine = [self.weight]
        return [ShardedParams(self.comms[0], mine, mine, self.layout, self.layout.tensors)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_state_gradients_and_norm_of_a_model_with_a_layer_that_nobody_has_heard_of(
    ranks: int,
) -> None:
    def run() -> list[Any]:
        def model(last: Any) -> Any:
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(3, 3, dtype=F64), last())

        net = model(partial(ColumnwiseLinear, 3, 4))
        fully_shard(net[0])
        alone = model(partial(nn.Linear, 3, 4, bias=False, dtype=F64))
        x = torch.arange(6, dtype=F64).view(2, 3)
        for each in (net, alone):
            each(x).square().sum().backward()
        # Through the gathered columns of other ranks no gradient comes: each has its own rows'.
        found = [far(full_state_dict(net), alone.state_dict())]
        whole = full_gradients(net)["1.weight"]
        found.append(far({"1.weight": whole}, {"1.weight": alone[1].weight.grad}))
        grads = [each for each in full_gradients(net).values() if each is not None]
        norm = torch.linalg.vector_norm(torch.cat([each.flatten() for each in grads]))
        found.append(torch.allclose(clip_grad_norm_(net, 1.0), norm))
        other = {name: value + 1 for name, value in alone.state_dict().items()}
        load_full_state_dict(net, other)
        found.append(far(full_state_dict(net), other))
        return found

    assert launch(run, ranks) == [["", "", True, ""]] * ranks
