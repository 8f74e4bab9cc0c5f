"""Local SGD and DiLoCo: DDP where H is 1, and one process that plays all ranks where it is not."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.optim import SGD, AdamW, Optimizer

from from_scratch.ddp import FlatDDP
from from_scratch.local_sgd import DiLoCo, LocalSGD
from minidist import Counted, Native, Ours, launch
from minidist.comm.counted import CountedCall

STEPS, ROWS, WIDE = 12, 12, 6  # 12 rows divide by 1 to 4 ranks
Inner = Callable[[nn.Module], Optimizer]
Outer = tuple[float, float]
INNER: dict[str, Inner] = {
    "SGD": lambda net: SGD(net.parameters(), 0.1),
    "momentum": lambda net: SGD(net.parameters(), 0.05, 0.9, weight_decay=0.01),
    "AdamW": lambda net: AdamW(net.parameters(), 0.01),
}
WAYS: dict[str, tuple[Any, Outer]] = {
    "plain": (LocalSGD, (1.0, 0.0)),
    "outer SGD": (partial(DiLoCo, lr=1, momentum=0), (1.0, 0.0)),
    "DiLoCo": (DiLoCo, (0.7, 0.9)),
}


def net(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Its third layer is frozen."""
    torch.manual_seed(seed)
    layers = [nn.Linear(WIDE, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)]
    layers[2].requires_grad_(False)
    return nn.Sequential(*layers).to(dtype)


def backward(model: Any, step: int, rank: int, ranks: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randn(ROWS, WIDE + 1, generator=draw).to(dtype).tensor_split([WIDE], dim=1)
    own = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    (model(x[own]) - y[own]).square().mean().backward()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(way: str, inner: str, every: int, dtype: torch.dtype) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(rank, dtype)  # rank 0's weights must win
    optimizer = WAYS[way][0](INNER[inner](model), Ours(check=False), every)
    for step in range(STEPS):
        backward(model, step, rank, ranks, dtype)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def simulated(ranks: int, inner: str, every: int, outer: Outer, dtype: torch.dtype) -> Tensor:
    """All ranks in one process, and Nesterov's outer step by hand."""
    models = [net(0, dtype) for _ in range(ranks)]
    inners = [INNER[inner](model) for model in models]
    start, velocity, (rate, momentum) = weights(models[0]), None, outer
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, inners, strict=True)):
            backward(model, step, rank, ranks, dtype)
            optimizer.step()
            optimizer.zero_grad()
        if step % every == every - 1:
            change = torch.stack([start - weights(model) for model in models]).mean(0)
            velocity = change if velocity is None else momentum * velocity + change
            start = start - rate * (change + momentum * velocity)
            for model in models:
                nn.utils.vector_to_parameters(start.clone(), model.parameters())
    return start


SINGLE, DOUBLE = torch.float32, torch.float64
Case = tuple[str, str, int, torch.dtype]  # a way, an inner optimizer, H
CASES: list[Case] = [
    *((way, inner, every, DOUBLE) for way in WAYS for inner in INNER for every in (1, 3, STEPS)),
    *((way, "SGD", every, SINGLE) for way in WAYS for every in (1, 3)),
]


def all_trained(cases: list[Case]) -> list[Tensor]:
    return [trained(*case) for case in cases]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_weights_are_those_of_one_process_that_plays_all_ranks(ranks: int) -> None:
    found = launch(all_trained, ranks, CASES)
    for case, weights_of_ranks in zip(CASES, zip(*found, strict=True), strict=True):
        way, inner, every, dtype = case
        right = simulated(ranks, inner, every, WAYS[way][1], dtype)
        for each in weights_of_ranks:
            near = 1e-6 if dtype is SINGLE else 1e-12
            assert (each - right).norm() <= near * right.norm(), case


# ---- beside DDP, and torch's own averages ----


def by_ddp(inner: str) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(rank, SINGLE)
    ddp, optimizer = FlatDDP(model, Ours(check=False)), INNER[inner](model)
    for step in range(STEPS):
        backward(ddp, step, rank, ranks, SINGLE)
        ddp.synchronize()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def whole_batch(inner: str) -> Tensor:
    model = net(0, SINGLE)
    optimizer = INNER[inner](model)
    for step in range(STEPS):
        backward(model, step, 0, 1, SINGLE)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def beside_ddp() -> dict[str, list[Tensor]]:
    found = {}
    for inner in INNER:
        ours = [trained(way, inner, 1, SINGLE) for way in ("plain", "outer SGD")]
        found[inner] = [by_ddp(inner), *ours]
    return found


@pytest.mark.claim("I1")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_one_step_to_a_round_is_ddp_where_the_inner_optimizer_is_linear(ranks: int) -> None:
    for found in launch(beside_ddp, ranks):
        for inner in ("SGD", "momentum"):
            one = whole_batch(inner)
            for each in found[inner]:
                assert (each - one).norm() <= 1e-6 * one.norm(), inner
        ddp, *ours = found["AdamW"]  # a mean of Adam's steps is not Adam's step on the mean
        for each in ours:
            assert ((each - ddp).norm() > 1e-3 * ddp.norm()) == (ranks > 1)


def by_torch(every: int) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(0, SINGLE)
    optimizer = INNER["AdamW"](model)
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
    for step in range(STEPS):
        backward(model, step, rank, ranks, SINGLE)
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    return weights(model)


def beside_torch() -> list[tuple[Tensor, Tensor]]:
    return [(trained("plain", "AdamW", n, SINGLE), by_torch(n)) for n in (1, 4)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_are_those_of_torchs_periodic_averages(ranks: int) -> None:
    for found in launch(beside_torch, ranks):
        for ours, theirs in found:
            assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


# ---- what is sent, handed on, and refused ----


def counted(way: str, every: int) -> tuple[list[list[CountedCall]], int]:
    """The calls of each step, and all bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, comm = net(), Counted(Ours(algorithm="ring"))
    optimizer = WAYS[way][0](INNER["SGD"](model), comm, every)
    comm.clear()
    calls: list[list[CountedCall]] = []
    for step in range(STEPS):
        before = len(comm.calls)
        backward(model, step, rank, ranks, torch.float64)
        optimizer.step()
        calls.append(comm.calls[before:])
    return calls, comm.bytes_sent


def all_counted() -> list[tuple[list[list[CountedCall]], int]]:
    return [counted(way, every) for way in WAYS for every in (1, 4)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_round_sends_what_one_all_reduce_of_the_trained_weights_does(ranks: int) -> None:
    size = sum(p.nbytes for p in net().parameters() if p.requires_grad)
    found = zip(*launch(all_counted, ranks), strict=True)
    for of_ranks, every in zip(found, [1, 4] * len(WAYS), strict=True):
        for calls, _ in of_ranks:
            for step, made in enumerate(calls):
                ends = step % every == every - 1
                assert made == [CountedCall("all_reduce", size)] * ends
        assert sum(sent for _, sent in of_ranks) == 2 * (ranks - 1) * size * STEPS // every


def joined() -> list[Tensor]:
    """A newcomer, and the rank whose state it was given, two rounds later."""
    old, new = net(), net(9)
    them = [DiLoCo(INNER["SGD"](each), Native(), 2) for each in (old, new)]
    frozen = old[2].state_dict()
    for step in range(8):
        if step == 4:
            new[2].load_state_dict(frozen)
            them[1].load_state_dict(deepcopy(them[0].state_dict()))  # as a message is
        for each, optimizer in zip((old, new), them, strict=True):
            backward(each, step, 0, 1, torch.float64)
            optimizer.step()
            optimizer.zero_grad()
    return [weights(old), weights(new)]


def test_a_newcomer_goes_on_as_the_rank_whose_state_it_was_given() -> None:
    ((old, new),) = launch(joined, 1)
    assert torch.equal(old, new)


def two_dtypes() -> nn.Module:
    model = net()
    model[0].bias.data = model[0].bias.float()
    return model


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_what_it_cannot_do_is_refused_in_a_sentence(kind: Any) -> None:
    with pytest.raises(ValueError, match="every: expected a number of steps from 1 on, got 0"):
        kind(INNER["SGD"](net()), None, 0)
    with pytest.raises(ValueError, match="several dtypes or devices do not fit in one tensor"):
        kind(INNER["SGD"](two_dtypes()), None, 1)
