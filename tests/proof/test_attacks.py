"""Models and training loops that try to break the wrappers; each is compared with plain modules.

What is tried is in `attacks`, and, at random, in `random_models`.
"""

import copy
import gc
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import minidist
from minidist import DistributedDataParallel, ZeroOptimizer, launch
from minidist.comm.native import Native
from minidist.comm.ours import Ours
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.holders import holder_of
from tests.proof import attacks, models, random_models
from tests.proof.attacks import DDP, FSDP, ZERO, Attack, Explodes, Live, batch, score
from tests.proof.models import RANKS

PLAIN = Attack(models.net, optimizer=partial(SGD, lr=0.1))


def assert_nothing(found: list[dict[str, list[str]]]) -> None:
    assert {name: said[:2] for each in found for name, said in each.items() if said} == {}


@pytest.mark.claim("C6", "E5")
@pytest.mark.parametrize("ways", [DDP[:1], DDP[1:], ZERO, FSDP], ids=", ".join)
def test_steps_are_those_of_plain_modules_whatever_the_loop_does(ways: list[str]) -> None:
    assert_nothing(launch(attacks.verdicts, RANKS, ways, timeout=200))


@pytest.mark.parametrize(
    ("ways", "seeds"), [(DDP, range(40, 52)), (ZERO, range(12)), (FSDP, range(100, 116))]
)
def test_random_models_train_as_plain_ones(ways: list[str], seeds: range) -> None:
    assert_nothing(launch(random_models.verdicts, RANKS, list(seeds), ways, timeout=200))


# ---- exceptions, hooks, memory, sub-groups ----


def plain() -> Any:
    return models.made(models.net)


def ready(way: str, comm: Any = None, net: nn.Module | None = None) -> Live:
    """A net, wrapped and ready to train."""
    return attacks.wrap(net or plain(), way, PLAIN, comm or Ours())


def step(live: Live, turn: int) -> None:
    live.turn = turn
    live.optimizer.zero_grad()
    live.loss().backward()
    live.optimizer.step()


def as_plain(live: Live, turns: int, ranks: Sequence[int]) -> bool:
    """Whether it is what a plain net comes to after so many turns with these ranks' batches."""
    net = plain()
    optimizer = PLAIN.optimizer(net.parameters())
    for turn in range(turns):
        optimizer.zero_grad()
        (sum(score(net(batch(rank, turn))) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
    got = minidist.full_state_dict(live.model)
    return all(torch.allclose(got[name], p, 1e-10, 0) for name, p in net.named_parameters())


def exceptions(way: str) -> list[object]:
    """After one in forward training goes on; after one in backward, with reshard() or anew."""
    net = plain()
    live = ready(way, net=net)
    step(live, 0)
    for part in (net.a, net.b, net):
        handle = part.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        for grad in (True, False):
            with pytest.raises(ZeroDivisionError), torch.set_grad_enabled(grad):
                live.model(batch(0))
        handle.remove()
    with pytest.raises(ZeroDivisionError):
        score(Explodes.apply(live.model(batch(0)))).backward()
    if way in DDP:  # in no_sync nobody waits for it
        handle = net.b.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
        with live.quiet(), pytest.raises(ZeroDivisionError):
            live.loss().backward()
        handle.remove()
    step(live, 1)
    found: list[object] = [as_plain(live, 2, [0, 1])]
    for part in (net.c, net.b, net.a):
        handle = part.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
        with pytest.raises(ZeroDivisionError):
            live.loss().backward()
        handle.remove()
        with pytest.raises(RuntimeError) as caught:
            live.optimizer.step() if way in ZERO else live.model(batch(0))
        found.append(str(caught.value))
        if way in FSDP:
            net.reshard()
        else:  # while the old wrapper is alive
            live = ready(way, net=net)
    step(live, 2)
    return [*found, as_plain(live, 3, [0, 1])]


def test_after_an_exception_training_goes_on_or_is_refused() -> None:
    def run() -> list[list[object]]:
        return [exceptions(way) for way in (DDP[0], "zero 2", "fsdp")]

    for rank, ways in enumerate(launch(run, 2)):
        for before, *said, after in ways:
            assert before is after is True
            assert all(f"rank {rank}" in each and "backward raised" in each for each in said), said


def hooks(way: str | None) -> list[str]:
    """What one's own hooks see on a sharded module, or on a plain one."""
    net, seen = plain(), list[str]()
    net.b.register_forward_pre_hook(lambda *_: seen.append("pre"))
    net.b.register_full_backward_hook(lambda *_: seen.append("backward"))
    if way:
        ready(way, net=net)
    net.b.register_forward_hook(lambda *_: seen.append("post"))
    net.a.register_full_backward_pre_hook(lambda *_: seen.append("a"))
    net.register_full_backward_hook(lambda *_: seen.append("root"))
    net.a.weight.register_post_accumulate_grad_hook(lambda p: seen.append(str(p.grad is not None)))
    score(net(batch(0).requires_grad_())).backward()
    return sorted(seen)


def freed(way: str) -> list[int]:
    """Bytes of each full parameter between steps, and after an evaluation."""
    held, live = [], ready(way)
    live.model(batch(0))
    unsharded = [p for unit in units(live.model) for group in unit.groups for p in group.unsharded]
    for turn in range(2):
        step(live, turn)
        held += [p.untyped_storage().nbytes() for p in unsharded]
        with torch.no_grad():
            live.model(batch(0))
        held += [p.untyped_storage().nbytes() for p in unsharded]
    return held


def released(way: str) -> list[object]:
    """What is still alive of a wrapped model that is gone, and whether another one trains on."""
    live, other = ready(way), ready(way)
    for turn in range(2):
        step(live, turn)
        step(other, turn)
    if isinstance(live.optimizer, ZeroOptimizer):
        shards = [ref(shard) for bucket in live.optimizer.buckets for shard in bucket.shards]
        gone = [ref(live.optimizer.inner), *shards]
    else:
        groups = [group for unit in units(live.model) for group in unit.groups]
        gone = [ref(each) for group in groups for each in [group.local, *group.unsharded]]
        del groups
    gone += [ref(live.model), ref(live.optimizer)]
    del live
    for _ in range(2):  # the first one frees what hooks of autograd's nodes hold
        gc.collect()
    step(other, 2)
    return [any(each() is not None for each in gone), as_plain(other, 3, [0, 1])]


def without_its_optimizer() -> list[bool]:
    """A copy of a module under ZeRO, and the module when the optimizer is gone, are plain."""
    live = ready("zero 2")
    step(live, 0)
    net, twin = live.model, copy.deepcopy(live.model)
    del live
    gc.collect()
    for each in (net, twin):
        each.zero_grad()
        score(each(batch(0))).backward()
    kept = [p.grad is not None for each in (net, twin) for p in each.parameters()]
    return [holder_of(net.a.weight) is None, *kept]


def test_hooks_and_memory() -> None:
    def run() -> tuple[Any, ...]:
        return (
            [hooks(way) for way in (None, "fsdp")],
            [freed(way) for way in FSDP],
            [released(way) for way in ("zero 2", "fsdp")],
            without_its_optimizer(),
        )

    for (bare, *hooked), held, left, plain in launch(run, 2):
        assert hooked == [bare]
        assert all(each and not any(each) for each in held)
        assert left == [[False, True]] * 2
        assert all(plain)


def test_groups_train_apart_and_hybrid_ones_together() -> None:
    def run() -> dict[str, bool]:
        rank = dist.get_rank()
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        mine, row = columns[rank % 2], rows[rank // 2]
        apart, found = [rank % 2, rank % 2 + 2], {}
        for way in (DDP[0], "zero 1", "zero 2", "fsdp"):
            for kind in (Ours, Native, partial(Ours, algorithm="ring")):
                found[f"{way}, {kind}"] = trains(ready(way, kind(mine)), apart)
        for kind in (Ours, Native):
            pair = kind(mine), kind(row)
            found[f"hybrid, {kind}"] = trains(ready("fsdp", pair), [0, 1, 2, 3])
        return found

    def trains(live: Live, ranks: list[int]) -> bool:
        for turn in range(3):
            step(live, turn)
        return as_plain(live, 3, ranks)

    for found in launch(run, 4):
        assert all(found.values()), found


# ---- ZeRO ----


def two_optimizers() -> list[float]:
    """Of two halves of a model, the one with a scheduler."""
    net = plain()
    first = ZeroOptimizer(net.a.parameters(), SGD, stage=2, lr=0.1)
    second = ZeroOptimizer(net.b.parameters(), SGD, gradients="local", lr=0.2)
    plan = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    for turn in range(2):
        first.zero_grad()
        second.zero_grad()
        score(net(batch(dist.get_rank(), turn))).backward()
        first.step()
        second.step()
        plan.step()
    minidist.check_replicas(net.a)
    minidist.check_replicas(net.b)
    return [first.inner.param_groups[0]["lr"], first.param_groups[0]["lr"]]


def test_two_optimizers_of_one_model_train_and_follow_their_schedulers() -> None:
    assert launch(two_optimizers, RANKS) == [[0.05, 0.025]] * RANKS


# ---- DDP ----


def joined_penalty() -> list[int]:
    """Ranks that have run out must not answer a pass that sends nothing."""
    rank, steps = dist.get_rank(), []
    for find in (False, True):
        model = DistributedDataParallel(plain(), find_unused_parameters=find)
        with model.join():
            for turn in range(1 + 2 * rank):
                model.zero_grad()
                Live(model, model, rank=rank, turn=turn).penalty()
        steps.append(model.steps)
        score(model(batch(rank))).backward()
    return steps


def compiled() -> list[bool]:
    """A compiled net in DDP, and a compiled DDP."""
    found = []
    for inside in (True, False):
        net = plain()
        inner = torch.compile(net, backend="aot_eager") if inside else net
        model = DistributedDataParallel(inner)
        call = model if inside else torch.compile(model, backend="eager")
        live = Live(call, PLAIN.optimizer(net.parameters()), rank=dist.get_rank())
        for turn in range(3):
            step(live, turn)
        found.append(as_plain(Live(net, net), 3, range(2)))
    return found


def test_ddp_with_join_and_compilation() -> None:
    assert launch(lambda: [joined_penalty(), compiled()], 2) == [[[3, 3], [True, True]]] * 2
