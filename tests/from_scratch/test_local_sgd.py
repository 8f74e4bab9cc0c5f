"""Local SGD and DiLoCo beside DDP and torch's averages; what they send, and what they refuse.

That weights are those of one process which plays all ranks, the milestone shows.
"""

from collections.abc import Callable
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
from from_scratch.zero import ZeRO1
from minidist import Counted, Ours, launch
from minidist.comm.counted import CountedCall

STEPS, ROWS, WIDE = 12, 12, 6  # 12 rows divide by 1 to 4 ranks
Inner = Callable[[nn.Module], Optimizer]
INNER: dict[str, Inner] = {
    "SGD": lambda net: SGD(net.parameters(), 0.1),
    "momentum": lambda net: SGD(net.parameters(), 0.05, 0.9, weight_decay=0.01),
    "AdamW": lambda net: AdamW(net.parameters(), 0.01),
}
WAYS: dict[str, Any] = {
    "plain": LocalSGD,
    "outer SGD": partial(DiLoCo, lr=1, momentum=0),
    "DiLoCo": DiLoCo,
}


def net(seed: int = 0) -> nn.Sequential:
    """Its third layer is frozen, and the weight of the first one is laid out by columns."""
    torch.manual_seed(seed)
    layers = [nn.Linear(WIDE, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)]
    layers[2].requires_grad_(False)
    layers[0].weight.data = layers[0].weight.detach().T.contiguous().T  # type: ignore[operator]
    return nn.Sequential(*layers)


def backward(model: Any, step: int, rank: int, ranks: int) -> None:
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randn(ROWS, WIDE + 1, generator=draw).tensor_split([WIDE], dim=1)
    own = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    (model(x[own]) - y[own]).square().mean().backward()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(way: str, inner: str, every: int) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(rank)  # rank 0's weights must win
    optimizer = WAYS[way](INNER[inner](model), Ours(check=False), every)
    for step in range(STEPS):
        backward(model, step, rank, ranks)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


# ---- beside DDP, and torch's own averages ----


def by_ddp(inner: str) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(rank)
    ddp, optimizer = FlatDDP(model, Ours(check=False)), INNER[inner](model)
    for step in range(STEPS):
        backward(ddp, step, rank, ranks)
        ddp.synchronize()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def whole_batch(inner: str) -> Tensor:
    model = net()
    optimizer = INNER[inner](model)
    for step in range(STEPS):
        backward(model, step, 0, 1)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def beside_ddp() -> dict[str, list[Tensor]]:
    found = {}
    for inner in INNER:
        ours = [trained(way, inner, 1) for way in ("plain", "outer SGD")]
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
    model = net()
    optimizer = INNER["AdamW"](model)
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
    for step in range(STEPS):
        backward(model, step, rank, ranks)
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    return weights(model)


def beside_torch() -> list[tuple[Tensor, Tensor]]:
    return [(trained("plain", "AdamW", n), by_torch(n)) for n in (1, 4)]


def test_weights_are_those_of_torchs_periodic_averages() -> None:
    for found in launch(beside_torch, 3):
        for ours, theirs in found:
            assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


# ---- what is sent, and what is refused ----


def counted(way: str, every: int) -> tuple[list[list[CountedCall]], int]:
    """The calls of each step, and all bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, comm = net(), Counted(Ours(algorithm="ring"))
    optimizer = WAYS[way](INNER["SGD"](model), comm, every)
    comm.clear()
    calls: list[list[CountedCall]] = []
    for step in range(STEPS):
        before = len(comm.calls)
        backward(model, step, rank, ranks)
        optimizer.step()
        calls.append(comm.calls[before:])
    return calls, comm.bytes_sent


def all_counted() -> list[tuple[list[list[CountedCall]], int]]:
    return [counted(way, every) for way in WAYS for every in (1, 4)]


def test_a_round_sends_what_one_all_reduce_of_the_trained_weights_does() -> None:
    ranks = 3
    size = sum(p.nbytes for p in net().parameters() if p.requires_grad)
    found = zip(*launch(all_counted, ranks), strict=True)
    for of_ranks, every in zip(found, [1, 4] * len(WAYS), strict=True):
        for calls, _ in of_ranks:
            for step, made in enumerate(calls):
                ends = step % every == every - 1
                assert made == [CountedCall("all_reduce", size)] * ends
        assert sum(sent for _, sent in of_ranks) == 2 * (ranks - 1) * size * STEPS // every


def two_dtypes() -> nn.Module:
    model = net()
    model[0].bias.data = model[0].bias.double()
    return model


def refusals(kind: Any) -> dict[str, str]:
    """What it says, by what is done."""

    def of(model: nn.Module, every: Any = 2) -> Any:
        return kind(INNER["SGD"](model), Ours(), every)

    def thawed() -> None:
        optimizer = of(model := net())
        model[2].requires_grad_(True)
        optimizer.step()

    def added() -> None:
        optimizer = of(net())
        optimizer.inner.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
        optimizer.step()

    def inside(load: bool) -> None:
        optimizer = of(net())
        state = optimizer.state_dict()
        optimizer.step()
        optimizer.load_state_dict({**state, "steps": 3}) if load else optimizer.state_dict()

    calls: dict[str, Callable[[], object]] = {
        "0": lambda: of(net(), 0),
        "2.5": lambda: of(net(), 2.5),
        "two dtypes": lambda: of(two_dtypes(), 1),
        "nothing to train": lambda: of(net().requires_grad_(False)),
        "ZeRO": lambda: kind(ZeRO1(net().parameters(), SGD, Ours()), Ours(), 1),
        "thawed": thawed,
        "added": added,
    }
    if kind is DiLoCo:
        calls |= {"saved": lambda: inside(False), "loaded": lambda: inside(True)}
    return {name: refusal(call) for name, call in calls.items()}


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_what_it_cannot_do_is_refused_in_a_sentence(kind: Any) -> None:
    (found,) = launch(refusals, 1, kind)
    late = "weights were thawed or added after the first round began"
    expected = {
        "0": "every: expected a number of steps from 1 on, got 0",
        "2.5": "every: expected a number of steps from 1 on, got 2.5",
        "two dtypes": "parameters of several dtypes or devices do not fit in one tensor",
        "nothing to train": "none of the optimizer's parameters requires a gradient",
        "ZeRO": "inner: expected an optimizer of torch's kind, got ZeRO1",
        "thawed": f"2 {late}",
        "added": f"1 {late}",
        "saved": "step 1 is inside a round of 2: join at the end of one",
        "loaded": "step 3 is inside a round of 2: join at the end of one",
    }
    assert found == {name: expected[name] for name in found}
