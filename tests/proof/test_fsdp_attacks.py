"""Models and training loops that try to break FSDP; each is compared with plain modules.

What is tried is in `sharded_attacks`, and, at random, in `sharded_random`.
"""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import minidist
from minidist import fully_shard, launch
from minidist.comm.comm import Comm, Native, Ours
from tests.proof.attacks import (
    FSDP,
    RANKS,
    Explodes,
    Net,
    batch,
    loss,
    verdicts,
)
from tests.proof.random_models import verdicts as random_verdicts

SEEDS = list(range(100, 116))


def test_steps_are_those_of_plain_modules_whatever_the_loop_does() -> None:
    found = launch(verdicts, RANKS, FSDP, timeout=200)
    assert {name: said[:2] for each in found for name, said in each.items() if said} == {}


def test_random_models_train_as_plain_ones() -> None:
    found = launch(random_verdicts, RANKS, SEEDS, FSDP, timeout=200)
    assert {name: said[:2] for each in found for name, said in each.items() if said} == {}


# ---- what is no matter of gradients ----


def cut(net: nn.Module, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    for part in (net.a, net.b, net):
        fully_shard(part, **options)
    return net, SGD(net.parameters(), lr=0.1, momentum=0.9)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    loss(net(batch(dist.get_rank(), turn))).backward()
    optimizer.step()


def plain(steps: list[int], ranks: list[int]) -> dict[str, torch.Tensor]:
    """What a plain Net comes to."""
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    for turn in steps:
        optimizer.zero_grad()
        (sum(loss(net(batch(rank, turn))) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
    return net.state_dict()


def equal(net: nn.Module, steps: list[int], ranks: list[int]) -> bool:
    got = minidist.full_state_dict(net)
    want = plain(steps, ranks)
    return all(torch.allclose(got[name], each, rtol=1e-10, atol=0) for name, each in want.items())


def exceptions(layout: str) -> list[object]:
    """In forward: one goes on, at once. In backward: after reshard()."""
    net, optimizer = cut(Net(), layout=layout)
    step(net, optimizer, 0)
    for part in (net.a, net.b, net):
        handle = part.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net(batch(0))
        with pytest.raises(ZeroDivisionError), torch.no_grad():
            net(batch(0))
        handle.remove()
    step(net, optimizer, 1)
    found: list[object] = [equal(net, [0, 1], [0, 1])]
    for part in (net.c, net.b, net.a):
        handle = part.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
        with pytest.raises(ZeroDivisionError):
            loss(net(batch(0))).backward()
        handle.remove()
        with pytest.raises(RuntimeError) as caught:
            net(batch(0))
        found.append(str(caught.value))
        net.reshard()
    step(net, optimizer, 2)
    return [*found, equal(net, [0, 1, 2], [0, 1])]


def hooks(layout: str) -> list[object]:
    """One's own, of modules and of parameters, are called as on a plain module."""
    said: list[object] = []
    for shard in (True, False):
        net, seen = Net(), list[str]()
        net.b.register_forward_pre_hook(lambda *_, s=seen: s.append("pre"))
        net.b.register_full_backward_hook(lambda *_, s=seen: s.append("backward"))
        if shard:
            cut(net, layout=layout)
        net.b.register_forward_hook(lambda *_, s=seen: s.append("post"))
        net.a.register_full_backward_pre_hook(lambda *_, s=seen: s.append("a"))
        net.register_full_backward_hook(lambda *_, s=seen: s.append("root"))
        net.a.weight.register_post_accumulate_grad_hook(
            lambda p, s=seen: s.append(f"{p.grad is not None}")
        )
        loss(net(batch(0).requires_grad_())).backward()
        said.append(sorted(seen))
    return [said[0] == said[1], said]


def released(layout: str) -> list[object]:
    """A model that is let go of leaves no memory; another in the process does not mind."""
    net, optimizer = cut(Net(), layout=layout)
    other, its_optimizer = cut(Net(), layout=layout)
    for turn in range(2):
        step(net, optimizer, turn)
        step(other, its_optimizer, turn)
    blocks = [
        block for unit in minidist.parallel.fsdp.fully_shard.units(net) for block in unit.groups
    ]
    gone = [ref(block.local) for block in blocks] + [ref(p) for b in blocks for p in b.unsharded]
    gone += [ref(net), ref(optimizer)]
    del net, optimizer, blocks
    for _ in range(2):  # the first one lets go of what hooks of autograd's nodes hold
        gc.collect()
    step(other, its_optimizer, 2)
    return [[each() is not None for each in gone], equal(other, [0, 1, 2], [0, 1])]


def freed(layout: str) -> list[int]:
    """Bytes of whole parameters held between steps, and after an evaluation; and how many looks."""
    held = []
    for reshard in (True, False):
        net, optimizer = cut(Net(), layout=layout, reshard_after_forward=reshard)
        units = minidist.parallel.fsdp.fully_shard.units(net)
        net(batch(0))
        unsharded = [p for unit in units for group in unit.groups for p in group.unsharded]
        for turn in range(2):
            step(net, optimizer, turn)
            held += [p.untyped_storage().nbytes() for p in unsharded]
            with torch.no_grad():
                net(batch(0))
            held += [p.untyped_storage().nbytes() for p in unsharded]
    return [sum(held), len(held)]


def copies(layout: str) -> list[str]:
    """A sharded module is neither copied nor pickled."""
    net, _ = cut(Net(), layout=layout)
    said = []
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError) as caught:
            call(net)
        said.append(str(caught.value))
    return said


def test_exceptions_hooks_memory_and_copies() -> None:
    def run() -> list[list[list[Any]]]:
        calls: list[Callable[[str], list[Any]]] = [exceptions, hooks, released, freed, copies]
        return [[call(layout) for call in calls] for layout in ("dim0", "flat")]

    for rank, layouts in enumerate(launch(run, 2)):
        for raised, hooked, left, held, refused in layouts:
            assert raised[0] is raised[-1] is True
            assert all(f"rank {rank}" in said for said in raised[1:-1] + refused)
            assert all("backward raised" in said for said in raised[1:-1])
            assert hooked[0], hooked[1]
            assert not any(left[0])
            assert left[1]
            assert held[0] == 0 < held[1]


def test_sub_groups_train_apart() -> None:
    def run() -> list[bool]:
        rank = dist.get_rank()
        groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        mine = groups[rank % 2]
        found = []
        comms: list[Comm] = [Ours(mine), Native(mine), Ours(mine, algorithm="ring")]
        for comm, layout in zip(comms, ("dim0", "flat", "dim0"), strict=True):
            net, optimizer = cut(Net(), comm=comm, layout=layout)
            for turn in range(3):
                step(net, optimizer, turn)
            found.append(equal(net, [0, 1, 2], [rank % 2, rank % 2 + 2]))
        return found

    assert launch(run, 4) == [[True] * 3] * 4


def test_hybrid_trains_as_one_process() -> None:
    def run() -> list[bool]:
        rank = dist.get_rank()
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        found = []
        for kind, layout in ((Ours, "dim0"), (Native, "flat")):
            pair = kind(columns[rank % 2]), kind(rows[rank // 2])
            net, optimizer = cut(Net(), comm=pair, layout=layout)
            for turn in range(3):
                step(net, optimizer, turn)
            found.append(equal(net, [0, 1, 2], [0, 1, 2, 3]))
        return found

    assert launch(run, 4) == [[True] * 2] * 4
