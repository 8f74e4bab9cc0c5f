"""Clipping by the global norm: as PyTorch's in one process, whatever wraps the model."""

import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from from_scratch.expert import Travel
from minidist import MismatchError, clip_grad_norm_, full_gradients, launch
from minidist.parallel.fsdp.shard import ShardValues
from tests.full_model.test_state_dict import difference
from tests.support.models import Net, loss, right_gradients, wrappings
from tests.support.training import grads_of

# (norm_type, max_norm), one after the other on the same gradients
NORMS = [(2.0, 1e9), (2.0, 1.0), (3.5, 1e-2), (math.inf, 1e-3)]
SHARDED = ["units", "kept whole after forward", "only blocks", "only the root", "mixed"]
SHARDED += ["hybrid"]


def right(ranks: int, factor: float, own: bool) -> Net:
    """The model in one process, with its gradients."""
    net = Net(0)
    if own:
        (loss(net, dist.get_rank()) * factor).backward()
        return net
    for name, gradient in right_gradients(ranks).items():
        net.get_parameter(name).grad = None if gradient is None else gradient * factor
    return net


def clip_all(
    factor: float, norms: list[tuple[float, float]], names: Iterable[str] = ()
) -> dict[str, tuple[str, list[str]]]:
    """What is wrong with each wrapper, and the norms bit by bit."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for name in names or wrappings(ranks):
        wrap = wrappings(ranks)[name]
        tolerance = 1e-4 if name == "mixed" else 1e-12
        model, net = wrap(Net(rank)), right(ranks, factor, name == "bare")
        (loss(model, rank) * factor).backward()
        shards = [p for p in model.parameters() if isinstance(p.grad, ShardValues)]
        assert bool(shards) == (name in SHARDED), name
        for foreach in (False, True) if shards else ():
            with pytest.raises(RuntimeError, match=f"rank {rank}: .*norm .* call minidist.clip_"):
                nn.utils.clip_grad_norm_(shards, 1.0, foreach=foreach)
        wrong, totals = "", []
        for norm_type, max_norm in norms:
            total = clip_grad_norm_(model, max_norm, norm_type)
            want = nn.utils.clip_grad_norm_(net.parameters(), max_norm, norm_type)
            if not torch.allclose(total, want, tolerance, 0, equal_nan=True):
                wrong += f"norm {norm_type}: {total} instead of {want}; "
            if (total.dtype, total.shape) != (want.dtype, want.shape):
                wrong += f"norm {norm_type}: {total.dtype}, {total.shape}; "
            totals.append(total.item().hex())
        wrong += difference(full_gradients(model), grads_of(net), tolerance)
        found[name] = wrong, totals
    return found


def check(told: list[dict[str, tuple[str, list[str]]]]) -> None:
    for name in told[0]:
        assert [each[name][0] for each in told] == [""] * len(told), name
        if name != "bare":
            assert len({str(each[name][1]) for each in told}) == 1, f"{name}: not the same bits"


@pytest.mark.claim("E9")
def test_it_clips_as_torch_does_in_one_process() -> None:
    check(launch(clip_all, 4, 1.0, NORMS))


SOME = ["ddp", "zero 1, local", "zero 2", "units", "only blocks"]


def not_finite() -> None:
    """One rank's gradients are no numbers."""
    for name in SOME:
        model = wrappings(dist.get_world_size())[name](Net(0))
        (loss(model, dist.get_rank()) * (math.nan if dist.get_rank() == 1 else 1)).backward()
        assert clip_grad_norm_(model, 1.0).isnan(), name
        every = [grad for grad in full_gradients(model).values() if grad is not None]
        assert all(grad.isnan().all() for grad in every), name


def another_max_norm() -> None:
    disagree = "clip_grad_norm_: the ranks disagree on max_norm: rank 0 passed 1.0; rank 1 passed 2"
    for name in ("ddp", "zero 2", "units"):
        model = wrappings(2)[name](Net(0))
        loss(model, dist.get_rank()).backward()
        with pytest.raises(MismatchError, match=disagree):
            clip_grad_norm_(model, 1.0 + dist.get_rank())


def test_what_is_not_finite_is_scaled_all_the_same_and_ranks_must_agree() -> None:
    def run() -> dict[str, tuple[str, list[str]]]:
        not_finite()
        another_max_norm()
        return clip_all(1e200, [(2.0, 1.0)], SOME)

    told = launch(run, 2)
    check(told)
    assert {norms[0] for found in told for _, norms in found.values()} == {"inf"}  # zeros are left


def test_without_ranks_it_is_torchs() -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.complex64):
        ours, theirs = (nn.Linear(3, 2, dtype=dtype) for _ in range(2))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        total = clip_grad_norm_(ours, 0.1)
        want = nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        bits = 1e-2 if dtype is torch.bfloat16 else 1e-6  # ours is a norm in float32
        torch.testing.assert_close(total, want, rtol=bits, atol=0, check_dtype=False)
        assert total.dtype == torch.promote_types(want.dtype, torch.float32)
        assert difference(grads_of(ours), grads_of(theirs), bits) == ""
    assert clip_grad_norm_(nn.Linear(2, 2), 1.0).item() == 0


class Mixture(nn.Module):
    """A router and two experts, of which a rank of `group` has one; every token visits both."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.group = nn.Linear(8, 2), group
        self.both = nn.Linear(8, 8), nn.Linear(8, 8)
        self.experts: Any = self.both[dist.get_rank(group)] if group else nn.ModuleList(self.both)

    def forward(self, x: torch.Tensor) -> Any:
        gate = self.router(x).softmax(-1)
        if self.group is None:
            results = [expert(x) for expert in self.both]
        else:
            ways = [len(x)] * 2, [len(x)] * 2, partial(dist.all_to_all_single, group=self.group)
            here = Travel.apply(x.repeat(2, 1), *ways)
            results = Travel.apply(self.experts(here), *ways).chunk(2)
        return gate[:, :1] * results[0] + gate[:, 1:] * results[1]


def clipped_as_the_page_does(shard: str, clip: str, x: torch.Tensor) -> tuple[str, float]:
    """What torch's `clip_grad_norm_` says, and how far gradients are from those of one process."""
    group, stages = (init_device_mesh("cpu", (4 // n, n)).get_group(1) for n in (2, 1))
    layer, alone = Mixture(group), Mixture()
    used = {"N": 4, "X": 2, "layer": layer, "stages": stages, "dist": dist}
    used |= {"init_device_mesh": init_device_mesh, "fully_shard": fully_shard}
    exec(shard.replace("cuda", "cpu"), used)
    layer.experts.set_force_sum_reduction_for_comms(True)  # for Gloo
    layer(x[dist.get_rank()]).square().mean().backward()
    alone(x.flatten(0, 1)).square().mean().backward()
    with pytest.raises(RuntimeError) as refused:
        nn.utils.clip_grad_norm_(layer.parameters(), 0.01)
    used["parts"] = [[*layer.router.parameters()], [*layer.experts.parameters()]]
    exec(clip.replace("1.0", "0.01"), used)
    nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
    mine: list[Any] = [*layer.parameters()]
    want: list[Any] = [*alone.router.parameters(), *alone.both[dist.get_rank() % 2].parameters()]
    apart = [(a.grad.full_tensor() - b.grad).abs().max() for a, b in zip(mine, want, strict=True)]
    return str(refused.value), max(apart).item()


def test_experts_on_a_mesh_of_their_own_are_averaged_and_clipped_as_the_page_does() -> None:
    page = (Path(__file__).parents[2] / "book" / "experts.md").read_text()
    shard, clip = re.findall(r"```python\n(.*?)```", page.partition("(fsdp-meshes)=")[2], re.DOTALL)
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    for refused, apart in launch(clipped_as_the_page_does, 4, shard, clip, x):
        assert "All operands in aten.stack.default must have the same mesh" in refused
        assert apart < 1e-6
