"""Local SGD between replicas that are split among ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW

import minidist
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.local_sgd import DiLoCo, LocalSGD
from from_scratch.pipeline import Pipeline
from from_scratch.tensor import SplitBlock
from minidist import launch
from minidist.schedule.pipeline import one_f_one_b, sequence
from tests.from_scratch.mesh import (
    CAP,
    DOUBLE,
    HALF,
    HOW,
    RATE,
    SAMPLES,
    TOKENS,
    WIDE,
    Grid,
    Trained,
    Whole,
    all_off,
    halves,
    layers,
    off,
    sgd,
)


class Rounds(NamedTuple):
    """Local SGD between replicas that are split among ranks."""

    inside: str = "pipeline"
    outer: Any = (0.7, 0.9)
    every: int = 2
    inner: str = "SGD"
    frozen: Any = ()
    dtype: torch.dtype = DOUBLE


INSIDE = ("pipeline", "blocks", "FSDP", "fully_shard", "ZeroOptimizer", "DDP")
FEW = [Rounds(inside) for inside in INSIDE]
MOST = [
    *(Rounds(inside, (), inner="AdamW") for inside in INSIDE),
    Rounds(every=1, frozen=(1,)),
    Rounds("fully_shard", every=3, frozen=(1,)),
    Rounds(dtype=HALF),
]
INNER: dict[str, Callable[[Any], Any]] = {
    "SGD": sgd,
    "AdamW": lambda parameters: AdamW(parameters, RATE / 10),
}


class Parts(NamedTuple):
    """A replica that is split, on this rank.

    Attributes:
        backward: of inputs and labels of the whole replica.
        inner: what steps, from a replica's parameters.
    """

    backward: Callable[[Tensor, Tensor], Any]
    inner: Callable[[], Any]
    synchronize: Callable[[], object] = int


def parts_of(case: Rounds, net: nn.Sequential, at: Grid) -> Parts:
    """The replica's net among the ranks of a row."""
    make, comm = INNER[case.inner], at.inner
    if case.inside == "pipeline":
        works = one_f_one_b(at.ranks, 2)
        border = torch.empty(SAMPLES // at.replicas // 2, TOKENS, WIDE, dtype=case.dtype)
        pipeline = Pipeline(net, at.ranks, border, comm.group)

        def step(x: Tensor, y: Tensor) -> Any:
            return pipeline.step(sequence(works), x, y, mse_loss)

        return Parts(step, lambda: make(pipeline.parameters()))
    synchronize: Callable[[], object] = int
    model: Any = net
    if case.inside == "FSDP":
        model = FSDP(net, [*net], comm)
        synchronize = model.synchronize
    elif case.inside == "fully_shard":
        for layer in net:
            minidist.fully_shard(layer, comm=comm)
        minidist.fully_shard(net, comm=comm)
    elif case.inside == "DDP":
        model = OverlappedDDP(net, comm, CAP)
        synchronize = model.synchronize

    def backward(x: Tensor, y: Tensor) -> Tensor:
        if case.inside != "blocks":  # each has a part of the batch
            x, y = (each.chunk(at.ranks)[at.rank] for each in (x, y))
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    if case.inside == "ZeroOptimizer":
        kind, how = (AdamW, {"lr": RATE / 10}) if case.inner == "AdamW" else (SGD, HOW)
        zero = partial(minidist.ZeroOptimizer, comm=comm, gradients="local", **how)
        return Parts(backward, lambda: zero(net.parameters(), kind))
    trained = model.shards if case.inside == "FSDP" else net.parameters
    return Parts(
        backward, lambda: make(trained if case.inside == "FSDP" else trained()), synchronize
    )


def replica(case: Rounds, make: Callable[..., nn.Module]) -> nn.Sequential:
    if case.inside == "blocks":
        return halves(make, "blocks", 4).to(case.dtype)
    torch.manual_seed(5)
    return layers(frozen=case.frozen)[:4].to(case.dtype)


class Lockstep:
    """All replicas in one process, which a round ends as the papers say it."""

    def __init__(self, case: Rounds, replicas: int) -> None:
        self.case, self.steps = case, 0
        self.nets = [replica(case, Whole) for _ in range(replicas)]
        self.inners = [INNER[case.inner](net.parameters()) for net in self.nets]
        self.starts = [each.detach().clone() for each in self.nets[0].parameters()]
        self.velocity: list[Any] = [0] * len(self.starts)

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        count = len(self.nets)
        losses = [
            mse_loss(net(own), label)
            for net, own, label in zip(self.nets, x.chunk(count), y.chunk(count), strict=True)
        ]
        torch.stack(losses).sum().backward()
        return torch.stack(losses).mean().detach()

    def zero_grad(self) -> None:
        for inner in self.inners:
            inner.zero_grad()

    def rejoin(self) -> None:
        self.inners[-1] = INNER[self.case.inner](self.nets[-1].parameters())

    @torch.no_grad()
    def step(self) -> None:
        for inner in self.inners:
            inner.step()
        self.steps += 1
        if self.steps % self.case.every:
            return
        rate, momentum = self.case.outer or (1, 0)
        every = zip(*(net.parameters() for net in self.nets), strict=True)
        for place, weights in enumerate(every):
            change = self.starts[place] - torch.stack([each.detach() for each in weights]).mean(0)
            self.velocity[place] = momentum * self.velocity[place] + change
            self.starts[place] -= rate * (change + momentum * self.velocity[place])
            for each in weights:
                each.copy_(self.starts[place])


class Kept:
    """An optimizer that can be made anew: by a replica that rejoins, from another one's state."""

    def __init__(self, case: Rounds, parts: Parts, at: Grid) -> None:
        self.case, self.parts, self.at = case, parts, at
        self.own = self.wrapped(parts.inner())

    def wrapped(self, inner: Any) -> Any:
        kind: Any = DiLoCo if self.case.outer else LocalSGD
        return kind(inner, self.at.data, self.case.every, *self.case.outer)

    def rejoin(self) -> None:
        last = self.at.replica == self.at.replicas - 1
        old, self.own = self.own, None
        inner = old.inner
        if last:
            with torch.no_grad():
                for each in old.parameters:
                    each.zero_()
            inner = self.parts.inner()
        self.own = self.wrapped(inner)
        state = [old.state_dict() if not self.at.replica else None]
        dist.broadcast_object_list(state, group=self.at.data.group, group_src=0)
        self.own.load_state_dict(state[0])

    def step(self) -> None:
        self.own.step()

    def zero_grad(self) -> None:
        self.own.zero_grad()


def rounds(case: Rounds, at: Grid) -> str:
    net = replica(case, partial(SplitBlock, comm=at.inner))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(at.replica)  # the first replica's must win
    parts = parts_of(case, net, at)
    kept, alone = Kept(case, parts, at), Lockstep(case, at.replicas)
    loop = "BSZ BBSZ BSZ BZBSZ " + "J" * (len(case.outer) > 0 and case.every < 3) + "BSZ BSZ BSZ B"
    own = Trained(parts.backward, kept, parts.synchronize, rejoin=kept.rejoin, loop=loop)
    right = Trained(alone.backward, alone, rejoin=alone.rejoin)
    return off(own, right, at, case.dtype, 1e-9 if case.dtype == DOUBLE else 3e-2)


def test_rounds_of_split_replicas() -> None:
    assert launch(all_off, 4, rounds, FEW, MOST, timeout=200) == [{}] * 4
