"""What a step of a milestone costs: calls, bytes, memory, and time on an emulated link."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from course.project.milestones import Milestone, Trained
from course.project.models import mlp
from minidist.comm.comm import Comm, Counted, Ours
from minidist.comm.slowed import Slowed
from minidist.memory.meter import Meter
from minidist.schedule.cost import Link

LINK = Link(alpha=100e-6, beta=1 / 250e6)  # 100 µs and 250 MB/s: what a laptop's cores can hide
WIDTH, LAYERS, ROWS = 192, 8, 96
CAP = WIDTH * WIDTH * 8 / 2**20  # MiB: a bucket for each layer
STEPS, ROUNDS = 3, 9


class Cost(NamedTuple):
    """Of one step, on one rank."""

    calls: int
    nbytes: int  # that its messages carry
    peak: int  # the most bytes that it holds, parameters and optimizer state among them


def build() -> nn.Module:
    """Equal layers, each a unit."""
    return nn.Sequential(*(mlp(WIDTH, WIDTH) for _ in range(LAYERS)))


def step(trained: Trained, inputs: torch.Tensor) -> None:
    """Train one step."""
    torch.autograd.backward(trained.model(inputs).square().mean())
    trained.synchronize()
    trained.optimizer.step()
    trained.optimizer.zero_grad()


def traffic(milestone: Milestone, kind: type, rows: torch.Tensor) -> Counted:
    """The calls and messages of the third step."""
    comm = Counted(Ours(algorithm="ring"))
    trained = milestone.train(kind, build(), comm, CAP)
    for _ in range(STEPS):
        comm.clear()
        step(trained, rows)
    return comm


def peak(milestone: Milestone, kind: type, rows: torch.Tensor) -> int:
    """The most bytes that a rank holds in the third step."""
    Ours().all_reduce(torch.ones(1))  # its buffers are not the step's
    meter = Meter()
    trained = milestone.train(kind, build(), Ours(), CAP)
    for _ in range(STEPS - 1):
        step(trained, rows)
    return meter.curve(lambda: step(trained, rows)).peak


def seconds(milestone: Milestone, kind: type, comm: Comm, rows: torch.Tensor) -> float:
    """The median time of a step, without the first ones."""
    trained = milestone.train(kind, build(), comm, CAP)
    took = []
    for _ in range(STEPS + ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        step(trained, rows)
        took.append(time.perf_counter() - start)
    return statistics.median(took[STEPS:])


def cost(milestone: Milestone, kind: type) -> Cost:
    """On a rank: what a step of a milestone's class sends and holds."""
    one = torch.ones(1, WIDTH).double()
    counted = traffic(milestone, kind, one)
    return Cost(len(counted.calls), counted.bytes_sent, peak(milestone, kind, one))


def on_slow_link(milestone: Milestone, kind: type) -> float:
    """On a rank: the seconds of a step on the emulated link."""
    slowed = Slowed(Ours(algorithm="shared_memory", check=False), LINK)
    return seconds(milestone, kind, slowed, torch.ones(ROWS, WIDTH).double())


def cost_and_seconds(milestone: Milestone, kind: type) -> tuple[Cost, float]:
    """On a rank: both."""
    return cost(milestone, kind), on_slow_link(milestone, kind)
