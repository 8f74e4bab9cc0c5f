"""Parameters that a backward leaves out, and ranks that count for more or less than others."""

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from minidist import Counted, DistributedDataParallel, MismatchError, Ours, launch
from tests.support.training import far, grads_of, mlp, numbers

SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}


class Experts(nn.Module):
    """Every part is used only if it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(4, 4)
        self.parts = nn.ModuleList([mlp(4, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor, which: list[int]) -> torch.Tensor:
        x = self.trunk(x)
        return sum((self.parts[i](x) for i in which), x.sum(1, keepdim=True))


def test_what_no_rank_used_keeps_its_bits() -> None:
    def run(view: bool) -> bool:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(
            Experts(), find_unused_parameters=True, gradient_as_bucket_view=view
        )
        rank = dist.get_rank()
        for step in range(2):  # the second builds the buckets anew
            ddp(numbers(rank, step, 3, 4), [0, 1]).mean().backward()
        first, last = (ddp.module.parts[i][0].weight for i in (0, 2))  # type: ignore[index]
        before = first.grad.clone()
        ddp.weigh(1 + rank / 3)  # a mean of equal gradients would be off by rounding
        ddp(numbers(rank, 2, 3, 4), [1]).mean().backward()
        return torch.equal(first.grad, before) and last.grad is None

    assert launch(lambda: [run(False), run(True)], 3) == [[True, True]] * 3


def test_unused_parameters_are_in_the_last_bucket_after_the_rebuild() -> None:
    def run() -> tuple[list[str], list[tuple[str, ...]]]:
        options = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}
        comm = Counted(Ours())
        ddp = DistributedDataParallel(Experts(), find_unused_parameters=True, comm=comm, **options)
        for _ in range(2):
            comm.clear()
            ddp(numbers(dist.get_rank(), 0, 3, 4), [1]).mean().backward()
        return [call.name for call in comm.calls], [bucket.names for bucket in ddp.buckets]

    for calls, names in launch(run, 2):
        unused = [f"parts.{i}.0.{kind}" for i in (0, 2) for kind in ("bias", "weight")]
        assert sorted(name for (name,) in names[-4:]) == sorted(unused)
        assert calls == ["broadcast", *["all_reduce"] * 8, "all_reduce"], "the last: who used what"


# Weights


def weighed(hooked: bool, **options: Any) -> str:
    """Shards of 1, 2 and 3 samples, and in step 1 one of none, against the mean over samples."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net, whole = mlp(4, 3), mlp(4, 3)
    ddp = DistributedDataParallel(net, **options)
    if hooked:
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    whole.load_state_dict(ddp.state_dict())
    for step in range(3):
        sizes = [0 if (r, step) == (1, 1) else r + 1 for r in range(ranks)]
        if step < 2:
            ddp.weigh(sizes[rank])
        else:  # weights count once
            sizes = [2] * ranks
        shards = [numbers(r, step, size, 4) for r, size in enumerate(sizes)]
        mine = shards[rank] if sizes[rank] else shards[0] * math.nan  # it counts for 0
        ddp.zero_grad()
        whole.zero_grad()
        ddp(mine).square().mean().backward()
        whole(torch.cat(shards)).square().mean().backward()
        if wrong := far(grads_of(net), grads_of(whole), 1e-12):
            return f"step {step}: {wrong}"
    return ""


def test_weights_give_the_mean_over_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")  # nor need the ranks compare their calls

    def run() -> list[str]:
        ways = product((False, True), ({}, SMALL, {"gradient_as_bucket_view": True}))
        return [weighed(hooked, **options) for hooked, options in ways]

    assert launch(run, 3) == [[""] * 6] * 3


NO_WEIGHTS = [-1, math.nan, math.inf, "3"]


def test_weights_must_be_numbers_and_not_all_0() -> None:
    def run() -> list[str]:
        ddp, found = DistributedDataParallel(mlp(4, 3)), []
        for samples in [*NO_WEIGHTS, 0]:
            with pytest.raises((ValueError, MismatchError), match="samples") as told:
                ddp.weigh(samples if dist.get_rank() or samples == 0 else 3)  # type: ignore[arg-type]
            found.append(str(told.value))
        return found

    *first, none = launch(run, 2)[0]
    for samples, told in zip(NO_WEIGHTS, first, strict=True):
        assert told.endswith(f"on rank 1: samples: expected a number from 0 on, got {samples!r}")
    assert "got 0 on all ranks" in none
