"""Models and training loops that try to break the wrappers; each is compared with plain modules.

What is tried is in `attacks`, and, at random, in `random_models`.
"""

import copy
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

import minidist
from minidist import DistributedDataParallel, ZeroOptimizer, launch
from minidist.comm.comm import Comm, Native, Ours
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.zero.optimizer import holder_of
from tests.proof import attacks, random_models
from tests.proof.attacks import DDP, FSDP, RANKS, ZERO, Attack, Live, Net, batch, loss, penalty

PLAIN = Attack(Net, optimizer=partial(SGD, lr=0.1))


def assert_nothing(found: list[dict[str, list[str]]]) -> None:
    assert {name: said[:2] for each in found for name, said in each.items() if said} == {}


@pytest.mark.parametrize("ways", [[way] for way in DDP] + [ZERO, FSDP], ids=", ".join)
def test_steps_are_those_of_plain_modules_whatever_the_loop_does(ways: list[str]) -> None:
    assert_nothing(launch(attacks.verdicts, RANKS, ways, timeout=200))


@pytest.mark.parametrize(("ways", "seeds"), [(ZERO, range(12)), (FSDP, range(100, 116))])
def test_random_models_train_as_plain_ones(ways: list[str], seeds: range) -> None:
    assert_nothing(launch(random_models.verdicts, RANKS, list(seeds), ways, timeout=200))


# ---- exceptions, hooks, memory, sub-groups ----


def ready(way: str, comm: Any = None, net: nn.Module | None = None) -> tuple[Any, Live, Optimizer]:
    """A net, wrapped and ready to train."""
    net = net or Net()
    return net, *attacks.wrap(net, way, PLAIN, comm or Ours())


def step(live: Live, optimizer: Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    loss(live.model(batch(dist.get_rank(), turn))).backward()
    optimizer.step()


def as_plain(live: Live, turns: int, ranks: Sequence[int]) -> bool:
    """Whether it is what a plain Net comes to after so many turns with these ranks' batches."""
    net = Net()
    optimizer = PLAIN.optimizer(net.parameters())
    for turn in range(turns):
        optimizer.zero_grad()
        (sum(loss(net(batch(rank, turn))) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
    got = minidist.full_state_dict(live.model)
    return all(torch.allclose(got[name], p, 1e-10, 0) for name, p in net.named_parameters())


class Explodes(torch.autograd.Function):
    """Raises on its way back."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


def exceptions(way: str) -> list[object]:
    """After one in forward training goes on; after one in backward, with reshard() or anew."""
    net, live, optimizer = ready(way)
    step(live, optimizer, 0)
    for part in (net.a, net.b, net):
        handle = part.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            live.model(batch(0))
        with pytest.raises(ZeroDivisionError), torch.no_grad():
            live.model(batch(0))
        handle.remove()
    with pytest.raises(ZeroDivisionError):
        loss(Explodes.apply(live.model(batch(0)))).backward()
    step(live, optimizer, 1)
    found: list[object] = [as_plain(live, 2, [0, 1])]
    for part in (net.c, net.b, net.a):
        handle = part.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
        with pytest.raises(ZeroDivisionError):
            loss(live.model(batch(0))).backward()
        handle.remove()
        with pytest.raises(RuntimeError) as caught:
            optimizer.step() if way in ZERO else live.model(batch(0))
        found.append(str(caught.value))
        if way in FSDP:
            net.reshard()
        else:  # while the old wrapper is alive
            live, optimizer = attacks.wrap(net, way, PLAIN, Ours())
    step(live, optimizer, 2)
    return [*found, as_plain(live, 3, [0, 1])]


def test_after_an_exception_training_goes_on_or_is_refused() -> None:
    def run() -> list[list[object]]:
        return [exceptions(way) for way in ("ddp", "zero 2", "dim0", "flat")]

    for rank, ways in enumerate(launch(run, 2)):
        for before, *said, after in ways:
            assert before is after is True
            assert all(f"rank {rank}" in each and "backward raised" in each for each in said), said


def hooks(layout: str) -> list[list[str]]:
    """What one's own hooks see on a sharded module and on a plain one."""
    said = []
    for shard in (True, False):
        net, seen = Net(), list[str]()
        net.b.register_forward_pre_hook(lambda *_, s=seen: s.append("pre"))
        net.b.register_full_backward_hook(lambda *_, s=seen: s.append("backward"))
        if shard:
            ready(layout, net=net)
        net.b.register_forward_hook(lambda *_, s=seen: s.append("post"))
        net.a.register_full_backward_pre_hook(lambda *_, s=seen: s.append("a"))
        net.register_full_backward_hook(lambda *_, s=seen: s.append("root"))
        net.a.weight.register_post_accumulate_grad_hook(
            lambda p, s=seen: s.append(f"{p.grad is not None}")
        )
        loss(net(batch(0).requires_grad_())).backward()
        said.append(sorted(seen))
    return said


def freed(way: str) -> list[int]:
    """Bytes of full parameters held between steps, and after an evaluation; and how many looks."""
    held = []
    net, live, optimizer = ready(way)
    net(batch(0))
    unsharded = [p for unit in units(net) for group in unit.groups for p in group.unsharded]
    for turn in range(2):
        step(live, optimizer, turn)
        held += [p.untyped_storage().nbytes() for p in unsharded]
        with torch.no_grad():
            net(batch(0))
        held += [p.untyped_storage().nbytes() for p in unsharded]
    return [sum(held), len(held)]


def released(way: str) -> list[object]:
    """What is still alive of a wrapped model that is gone, and whether another one trains on."""
    net, live, optimizer = ready(way)
    _, other, its_optimizer = ready(way)
    for turn in range(2):
        step(live, optimizer, turn)
        step(other, its_optimizer, turn)
    if isinstance(optimizer, ZeroOptimizer):
        gone = [ref(optimizer.inner), *(ref(s) for b in optimizer.buckets for s in b.shards)]
    else:
        groups = [group for unit in units(net) for group in unit.groups]
        gone = [ref(each) for group in groups for each in [group.local, *group.unsharded]]
        del groups
    gone += [ref(net), ref(optimizer)]
    del net, live, optimizer
    for _ in range(2):  # the first one frees what hooks of autograd's nodes hold
        gc.collect()
    step(other, its_optimizer, 2)
    return [[each() is not None for each in gone], as_plain(other, 3, [0, 1])]


def without_its_optimizer() -> list[bool]:
    """A copy of a module under ZeRO, and the module when the optimizer is gone, are plain."""
    net, live, optimizer = ready("zero 2")
    step(live, optimizer, 0)
    twin = copy.deepcopy(net)
    del live, optimizer
    gc.collect()
    for each in (net, twin):
        each.zero_grad()
        loss(each(batch(0))).backward()
    kept = [p.grad is not None for each in (net, twin) for p in each.parameters()]
    return [holder_of(net.a.weight) is None, *kept]


def test_hooks_and_memory() -> None:
    def run() -> tuple[Any, ...]:
        return (
            [hooks(layout) for layout in ("dim0", "flat")],
            [freed(way) for way in FSDP],
            [released(way) for way in ("zero 2", "dim0", "flat")],
            without_its_optimizer(),
        )

    for hooked, held, left, plain in launch(run, 2):
        assert all(sharded == bare for sharded, bare in hooked), hooked
        assert all(nbytes == 0 < looks for nbytes, looks in held)
        for alive, trains in left:
            assert not any(alive)
            assert trains
        assert all(plain)


def test_groups_train_apart_and_hybrid_ones_together() -> None:
    def run() -> dict[str, bool]:
        rank = dist.get_rank()
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        mine, row = columns[rank % 2], rows[rank // 2]
        comms: dict[str, Callable[[], Comm]] = {
            "auto": lambda: Ours(mine),
            "native": lambda: Native(mine),
            "ring": lambda: Ours(mine, algorithm="ring"),
        }
        apart, found = [rank % 2, rank % 2 + 2], {}
        for way in ("ddp", "zero 1", "zero 2", "dim0", "flat"):
            for name, comm in comms.items():
                found[f"{way}, {name}"] = trains(ready(way, comm()), apart)
        for way, kind in (("dim0", Ours), ("flat", Native)):
            found[f"{way}, hybrid"] = trains(ready(way, (kind(mine), kind(row))), [0, 1, 2, 3])
        return found

    def trains(made: tuple[Any, Live, Optimizer], ranks: list[int]) -> bool:
        for turn in range(3):
            step(*made[1:], turn)
        return as_plain(made[1], 3, ranks)

    for found in launch(run, 4):
        assert all(found.values()), found


# ---- ZeRO ----


def two_optimizers() -> list[float]:
    """Of two halves of a model, the one with a scheduler."""
    net = Net()
    first = ZeroOptimizer([*net.a.parameters()], SGD, stage=2, lr=0.1)
    second = ZeroOptimizer([*net.b.parameters()], SGD, gradients="local", lr=0.2)
    plan = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    for turn in range(2):
        first.zero_grad()
        second.zero_grad()
        loss(net(batch(dist.get_rank(), turn))).backward()
        first.step()
        second.step()
        plan.step()
    minidist.check_replicas(net.a)
    minidist.check_replicas(net.b)
    return [first.inner.param_groups[0]["lr"], first.param_groups[0]["lr"]]


def test_two_optimizers_of_one_model() -> None:
    assert launch(two_optimizers, 2) == [[0.05, 0.025]] * 2


def used_over_every_comm() -> dict[str, set[int]]:
    """Which layers' shards have a gradient at the step, when no rank used the last one."""
    names = "ring", "auto", "shared_memory", "tree", "halving_doubling"
    comms: list[Comm] = [Native(), *(Ours(algorithm=name) for name in names)]
    found = {}
    for name, comm in zip(["native", *names], comms, strict=True):
        net = nn.ModuleList(nn.Linear(3, 4, bias=False) for _ in range(3))
        optimizer = ZeroOptimizer(net.parameters(), SGD, stage=2, lr=0.1, comm=comm)
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


# ---- DDP ----


def scaled_and_clipped() -> list[float]:
    """Loss scaling, of which rank 1 alone meets an infinite loss: all skip that step."""
    rank, (_, live, optimizer) = dist.get_rank(), ready("ddp")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    scales = []
    for turn in range(4):
        optimizer.zero_grad()
        value = loss(live.model(batch(rank, turn)))
        scaler.scale(value * (float("inf") if (rank, turn) == (1, 2) else 1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(live.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        minidist.check_replicas(live.model)
        scales.append(scaler.get_scale() / 2**10)
    return scales


def evaluated() -> int:
    """BatchNorm's counter, an int64 buffer, with evaluation in every mode between."""
    rank = dist.get_rank()
    norm = nn.BatchNorm1d(3).double()
    norm.num_batches_tracked.fill_(10 * rank)
    model = DistributedDataParallel(norm)
    for turn in range(3):
        model(batch(rank, turn)).square().sum().backward()
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                model.eval()(batch(rank, turn))
            minidist.check_replicas(model)
        model.train()
    return norm.num_batches_tracked.item()


def joined_penalty() -> list[int]:
    """Ranks that have run out must not answer a pass that sends nothing."""
    rank, steps = dist.get_rank(), []
    for find in (False, True):
        model = DistributedDataParallel(Net(), find_unused_parameters=find)
        with model.join():
            for turn in range(1 + 2 * rank):
                model.zero_grad()
                penalty(Live(model, model.zero_grad), rank, turn)
        steps.append(model.steps)
        loss(model(batch(rank))).backward()
    return steps


def test_ddp_with_loss_scaling_evaluation_and_join() -> None:
    def run() -> list[object]:
        return [scaled_and_clipped(), evaluated(), joined_penalty()]

    assert launch(run, 2) == [[[2.0, 4.0, 2.0, 4.0], 3, [3, 3]]] * 2


def compiled() -> list[bool]:
    """A compiled net in DDP, and a compiled DDP."""
    inner = DistributedDataParallel(torch.compile(Net(), backend="aot_eager"))
    outer = DistributedDataParallel(Net())
    found = []
    for model, call in ((inner, inner), (outer, torch.compile(outer, backend="eager"))):
        optimizer = PLAIN.optimizer(model.parameters())
        for turn in range(3):
            step(Live(call, model.zero_grad), optimizer, turn)
        bare = getattr(model.module, "_orig_mod", model.module)
        found.append(as_plain(Live(bare, bare.zero_grad), 3, range(2)))
    return found


def test_compiled_modules() -> None:
    assert launch(compiled, 2) == [[True, True]] * 2
