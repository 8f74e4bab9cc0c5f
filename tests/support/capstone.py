"""Runs of the capstone as a reader may write them, wrong in typical ways, or right in another."""

# mypy: disable-error-code="no-untyped-call, no-untyped-def"
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import minidist
from course.chapters.capstone import run, task
from course.chapters.capstone.answers import ways
from course.chapters.capstone.cluster import Clock
from course.chapters.capstone.task import RANKS, RATE, STEPS, loss_of
from from_scratch.fsdp import FSDP


class FromScratch(ways.Run):
    """Right: the FSDP that the reader has written, in a node, and an all-reduce across."""

    def __init__(self, net: Any, cluster: Any) -> None:
        self.cluster, self.net = cluster, FSDP(net, net.blocks, cluster.node)
        self.optimizer = torch.optim.AdamW(self.net.shards, RATE)
        self.optimizer.register_step_pre_hook(self.average)

    def average(self, *_: Any) -> None:
        self.net.synchronize()
        for shard in self.net.shards:
            self.cluster.across.all_reduce(shard.grad)
            shard.grad /= self.cluster.across.ranks


def kept(net: Any, cluster: Any) -> Any:
    """Right: weights stay whole from forward to backward."""
    return ways.fsdp(False, net, cluster)


def node_alone(net: Any, cluster: Any) -> Any:
    """Nothing goes across."""
    for module in [*net.blocks, net]:
        minidist.fully_shard(module, comm=cluster.node)
    return net, torch.optim.AdamW(net.parameters(), RATE)


def around_the_cluster(net: Any, cluster: Any) -> Any:
    """The same strategy, through comms that nobody counts."""
    for module in [*net.blocks, net]:
        minidist.fully_shard(module)
    return net, torch.optim.AdamW(net.parameters(), RATE)


class BatchOfANode(ways.Run):
    """Both nodes read the same rows, by the numbers that the ranks have in a node."""

    def step(self, step: int) -> float:
        cluster, right = self.cluster, self.cluster.rows
        cluster.rows = lambda step, *_: right(step, cluster.node.rank, cluster.node.ranks)
        return super().step(step)


class ThreeSteps(ways.Run):
    """Trains as long as it is measured, and then reads on."""

    def step(self, step: int) -> float:
        if step < run.METERED + 1:
            return super().step(step)
        rows = self.cluster.rows(step, self.cluster.rank, self.cluster.ranks)
        loss = loss_of(self.net, rows)
        torch.autograd.backward(loss)
        self.optimizer.zero_grad()
        return loss.item()


class Replays(ways.Run):
    """Trains nothing: computes and sends as much as is needed, and knows the losses."""

    def step(self, step: int) -> float:
        mine = self.cluster.rows(step, self.cluster.rank, self.cluster.ranks)
        loss = loss_of(self.net, mine)
        torch.autograd.backward(loss)
        for parameter in self.net.parameters():
            self.cluster.world.all_reduce(parameter.grad, async_op=True)
        self.net.zero_grad()
        return loss.item() if step == 0 else task.alone(STEPS)[step]


class Alone(Replays):
    """Each rank trains by itself on all rows, of which it has asked for its own alone."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.own = task.model()
        self.optimizer = torch.optim.AdamW(self.own.parameters(), RATE)

    def step(self, step: int) -> float:
        super().step(step)
        every = task.rows(step, 0, 1)
        with torch.no_grad():
            mine = loss_of(self.own, every.chunk(RANKS)[self.cluster.rank]).item()
        torch.autograd.backward(loss_of(self.own, every))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return mine


class Patched(ways.Run):
    """While it trains, its links take no time."""

    def step(self, step: int) -> float:
        def carry(clock: Clock, _: object, __: float, nbytes: int) -> float:
            clock.sent += nbytes
            return clock.now

        with patch.object(Clock, "carry", carry):
            return super().step(step)


def as_it_comes(net: Any, _: Any) -> Any:
    """Nothing is wrapped."""
    return net, None


RUNS: dict[str, tuple[Any, int]] = {  # a run, and how many steps are enough to see what it is
    "hsdp": (ways.WAYS["hsdp"], 4),
    "kept": (partial(ways.Run, kept), 4),
    "from scratch": (FromScratch, 4),
    "ddp": (ways.WAYS["ddp"], 3),
    "fsdp": (ways.WAYS["fsdp"], 3),
    "node alone": (partial(ways.Run, node_alone), 2),
    "around": (partial(ways.Run, around_the_cluster), 1),
    "three steps": (partial(ThreeSteps, partial(ways.zero, 2)), 5),
    "replays": (partial(Replays, as_it_comes), 4),
    "alone": (partial(Alone, as_it_comes), 4),
    "patched": (partial(Patched, partial(ways.fsdp, True)), 4),
    "read twice": (partial(BatchOfANode, partial(ways.zero, 2)), 1),
}


def logs() -> dict[str, list[run.Line]]:
    """On a rank: the beginning of each run's log."""
    return {name: [*run.lines(make, steps)] for name, (make, steps) in RUNS.items()}


def losses() -> dict[str, list[float]]:
    """On a rank: the mean losses of all steps, for what keeps within the budget."""
    found = {name: run.lines(ways.WAYS[name], STEPS) for name in ("zero2", "hsdp")}
    return {name: [sum(line["loss"]) / RANKS for line in lines] for name, lines in found.items()}
