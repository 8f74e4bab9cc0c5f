"""Models and training loops that try to break ZeRO; each is compared with plain modules.

What is tried is in `sharded_attacks`, and, at random, in `sharded_random`.
"""

import copy
import gc
import io
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import minidist
from minidist import DistributedDataParallel, ZeroOptimizer, launch
from minidist.comm.comm import Comm, Native, Ours
from minidist.parallel.zero.optimizer import holder_of
from tests.proof.attacks import (
    RANKS,
    ZERO,
    Explodes,
    Net,
    batch,
    loss,
    verdicts,
)
from tests.proof.random_models import verdicts as random_verdicts

SEEDS = list(range(12))


def test_steps_are_those_of_plain_modules_whatever_the_loop_does() -> None:
    found = launch(verdicts, RANKS, ZERO, timeout=200)
    wrong = {name: said[:2] for each in found for name, said in each.items() if said}
    assert wrong == {}


def test_random_models_train_as_plain_ones() -> None:
    found = launch(random_verdicts, RANKS, SEEDS, ZERO, timeout=200)
    assert {name: said[:2] for each in found for name, said in each.items() if said} == {}


# ---- what is no matter of gradients ----


def local(net: nn.Module, stage: int, **options: Any) -> ZeroOptimizer:
    options = {"gradients": "local", "bucket_cap_mb": 1e-4, "lr": 0.1, "momentum": 0.9} | options
    return ZeroOptimizer(net.parameters(), SGD, stage=stage, **options)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    loss(net(batch(dist.get_rank(), turn))).backward()
    optimizer.step()


def exceptions(rank: int) -> list[str]:
    """In forward nothing has happened; after one in backward what is built anew goes on."""
    net = Net()
    optimizer = local(net, 2)
    step(net, optimizer, 0)
    with pytest.raises(RuntimeError):
        net(batch(rank)[:, :2])
    step(net, optimizer, 1)
    handle = net.b.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
    with pytest.raises(ZeroDivisionError):
        loss(net(batch(rank))).backward()
    handle.remove()
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    said = str(caught.value)
    step(net, local(net, 2), 2)
    minidist.check_replicas(net)
    return [said]


def copies(rank: int) -> list[str]:
    """Those of the module are free of the optimizer, which is itself not to be copied."""
    net = Net()
    optimizer = local(net, 2)
    step(net, optimizer, 0)
    stored = io.BytesIO()
    torch.save(net, stored)
    stored.seek(0)
    for twin in (copy.deepcopy(net), torch.load(stored, weights_only=False)):
        twin.zero_grad()
        loss(twin(batch(rank))).backward()
        assert twin.a.weight.grad is not None, "nobody has taken it away"
    with pytest.raises(TypeError) as caught:
        copy.deepcopy(optimizer)
    return [str(caught.value)]


def released(rank: int) -> list[bool]:
    """An optimizer that is let go of leaves no hook and no memory."""
    net = Net()
    optimizer = local(net, 2)
    seen: list[bool] = []
    net.a.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad is not None))
    step(net, optimizer, 0)
    gone = ref(optimizer), ref(optimizer.inner), ref(optimizer.buckets[0].shards[0])
    del optimizer
    gc.collect()
    alive = [each() is not None for each in gone]
    net.zero_grad()
    loss(net(batch(rank))).backward()
    kept = [p.grad is not None for p in net.parameters()]
    return [*alive, holder_of(net.a.weight) is not None, not all(kept), len(seen) != 2]


def two_optimizers(rank: int) -> list[float]:
    """Of two halves of a model, the one with a scheduler."""
    net = Net()
    first = ZeroOptimizer([*net.a.parameters()], SGD, stage=2, lr=0.1)
    second = ZeroOptimizer([*net.b.parameters()], SGD, gradients="local", lr=0.2)
    plan = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    for turn in range(2):
        first.zero_grad()
        second.zero_grad()
        loss(net(batch(rank, turn))).backward()
        first.step()
        second.step()
        plan.step()
    minidist.check_replicas(net.a)
    minidist.check_replicas(net.b)
    return [first.inner.param_groups[0]["lr"], first.param_groups[0]["lr"]]


def test_exceptions_copies_memory_and_two_optimizers() -> None:
    def run() -> list[list[Any]]:
        return [each(dist.get_rank()) for each in (exceptions, copies, released, two_optimizers)]

    for rank, (raised, refused, left, rates) in enumerate(launch(run, 2)):
        assert f"rank {rank}" in raised[0]
        assert "its last backward raised" in raised[0]
        assert f"rank {rank}" in refused[0]
        assert not any(left), left
        assert rates == [0.05, 0.025]


def in_sub_groups() -> list[bool]:
    """Two groups of two, each with its own model."""
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    mine = groups[rank % 2]
    found = []
    for stage, comm in ((1, Ours(mine)), (2, Native(mine)), (2, Ours(mine, algorithm="ring"))):
        torch.manual_seed(rank)
        net, plain = Net(), Net()
        optimizer = local(net, stage, comm=comm)
        reference = SGD(plain.parameters(), lr=0.1, momentum=0.9)
        for turn in range(3):
            step(net, optimizer, turn)
            reference.zero_grad()
            losses = [loss(plain(batch(each, turn))) for each in (rank % 2, rank % 2 + 2)]
            (sum(losses) / 2).backward()
            reference.step()
        pairs = zip(net.parameters(), plain.parameters(), strict=True)
        found += [torch.allclose(one, other, 1e-10) for one, other in pairs]
    return found


def test_sub_groups_train_apart() -> None:
    assert launch(in_sub_groups, 4) == [[True] * 24] * 4


def used_over_every_comm() -> dict[str, set[int]]:
    """Which layers' shards have a gradient at the step, when no rank used the last one."""
    names = "ring", "auto", "shared_memory", "tree", "halving_doubling"
    comms: list[Comm] = [Native(), *(Ours(algorithm=name) for name in names)]
    found = {}
    for name, comm in zip(["native", *names], comms, strict=True):
        net = nn.ModuleList(nn.Linear(3, 4, bias=False) for _ in range(3))
        optimizer = local(net, 2, comm=comm, bucket_cap_mb=25)
        x = torch.randn(2, 3)
        loss(net[0](x) + (net[1](x) if comm.rank == 1 else 0)).backward()
        optimizer.average()
        (bucket,) = optimizer.buckets
        layers = {layer.weight: index for index, layer in enumerate(net)}
        shards = zip(bucket.parameters, bucket.shards, strict=True)
        found[name] = {layers[p] for p, shard in shards if shard.grad is not None}
    return found


def test_a_gradient_that_no_rank_has_is_none_over_every_comm() -> None:
    ranks = launch(used_over_every_comm, RANKS)
    for name in ranks[0]:
        assert set().union(*(found[name] for found in ranks)) == {0, 1}, name


def test_ddp_and_zero_share_one_gradient() -> None:
    """Stage 1 on DDP steps on views of DDP's averaged gradients: nothing is copied."""

    def run() -> list[bool]:
        model = DistributedDataParallel(Net())
        optimizer = ZeroOptimizer(model.parameters(), SGD, lr=0.1)
        loss(model(batch(dist.get_rank()))).backward()
        optimizer.average()
        return [
            shard.grad.untyped_storage().data_ptr() == p.grad.untyped_storage().data_ptr()
            for bucket in optimizer.buckets
            for p, shard in zip(bucket.parameters, bucket.shards, strict=True)
            if len(shard)
        ]

    for found in launch(run, 2):
        assert found
        assert all(found)
