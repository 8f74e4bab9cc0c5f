"""What a step of a milestone costs: calls, bytes, memory, and time on an emulated link."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch import nn

from course.project.milestones import Milestone, Trained, nothing
from course.project.models import Twice, mlp
from course.project.ring import recorded, sends
from course.timing.travels import Awaited
from minidist.comm.comm import Around, Comm, Pending
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from minidist.comm.slowed import Slowed
from minidist.memory.meter import Meter
from minidist.schedule.cost import Link

LINK = Link(alpha=100e-6, beta=1 / 250e6)  # 100 µs and 250 MB/s: what a laptop's cores can hide
WIDTH, LAYERS, ROWS = 192, 8, 96
CAP = WIDTH * WIDTH * 8 / 2**20  # MiB: a bucket for each layer
STEPS, ROUNDS = 3, 9
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


class Cost(NamedTuple):
    """Of one step, on one rank."""

    calls: int
    messages: int
    nbytes: int  # that they carry
    peak: int  # the most bytes of tensors that it holds, parameters and optimizer state among them
    kept: int  # bytes by which some steps let its process grow; 0 where that cannot be known
    overlaps: int  # how often a call is on its way when a layer computes or another call is made
    early: int  # calls that are made before backward ends
    passed: int  # gathers that are waited for before one that was called earlier
    twice: int  # calls of a step of the model in which a unit runs twice; of FSDP


class Overlapping(Around):
    """A comm that counts how often a call is on its way when something else happens."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.under_way: dict[int, str] = {}  # a call's number → its name
        self.calls = self.overlaps = self.passed = 0

    def look(self, *_: object) -> None:
        """Count the kinds of calls that are on their way."""
        self.overlaps += len(set(self.under_way.values()))

    def watch(self, _: nn.Module, __: object, output: torch.Tensor) -> None:
        """A forward hook: look after a layer's forward, and before its backward."""
        self.look()
        output.register_hook(self.look)  # type: ignore[no-untyped-call]

    def around(
        self, name: str, full: torch.Tensor, call: Callable[[bool], Pending], async_op: bool
    ) -> Pending:
        """Make the call, and remember it until its wait."""
        self.look()
        work = call(async_op)
        if work is None:
            return None
        self.calls += 1
        self.under_way[self.calls] = name
        return Awaited(work, partial(self.forgotten, self.calls))

    @contextmanager
    def forgotten(self, call: int) -> Iterator[None]:
        """Count the call as on its way until somebody has waited for it."""
        yield
        name = self.under_way.pop(call, "")
        others = (each for each, its in self.under_way.items() if its == name == "all_gather")
        self.passed += min(others, default=call) < call


def build() -> nn.Module:
    """Equal layers, each a unit."""
    return nn.Sequential(*(mlp(WIDTH, WIDTH) for _ in range(LAYERS)))


def step(
    trained: Trained, inputs: torch.Tensor, after_backward: Callable[[], object] = nothing
) -> None:
    """Train one step."""
    torch.autograd.backward(trained.model(inputs).square().mean())
    after_backward()
    trained.synchronize()
    trained.optimizer.step()
    trained.optimizer.zero_grad()


def traffic(
    milestone: Milestone, kind: type, net: nn.Module, rows: torch.Tensor
) -> tuple[Counted, Overlapping, int]:
    """Calls and messages of the third step, its overlaps, and its calls before backward ends."""
    overlapping = Overlapping(Ours(algorithm="ring"))
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(overlapping.watch)
    comm = Counted(overlapping)
    trained = milestone.train(kind, net, comm, CAP)
    early = list[int]()
    for _ in range(STEPS):
        comm.clear()
        overlapping.overlaps = overlapping.passed = 0
        step(trained, rows, lambda: early.append(len(comm.calls)))
    return comm, overlapping, early[-1]


def memory(milestone: Milestone, kind: type, rows: torch.Tensor) -> tuple[int, int]:
    """The most bytes of tensors that a rank holds in a step, and by how many its process has grown.

    Of three peaks the least, as threads may free late. Only the process knows of arrays and files.
    """
    comm = Ours(algorithm="shared_memory")  # another would be chosen by its speed, not its memory
    comm.all_reduce(torch.ones(LAYERS * WIDTH * (WIDTH + 1)))  # its buffers are not the step's
    meter, before = Meter(), of_the_process()
    trained = milestone.train(kind, build(), comm, CAP)
    for _ in range(STEPS):
        step(trained, rows)
    kept = of_the_process() - before
    return min(meter.curve(lambda: step(trained, rows)).peak for _ in range(STEPS)), kept


def of_the_process() -> int:
    """The bytes that are this process's alone; 0 without glibc, which can give back what is free.

    A block of 32 KiB or more then is taken from the system, and given back when it is freed.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return 0
    gc.collect()
    libc.mallopt(M_MMAP_THRESHOLD, 2**15)
    libc.malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


def seconds(milestone: Milestone, kind: type, comm: Comm, rows: torch.Tensor) -> float:
    """The time of the fastest step: what slows one down is other work on the machine."""
    trained = milestone.train(kind, build(), comm, CAP)
    took = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        step(trained, rows)
        took.append(time.perf_counter() - start)
    return min(took)


def cost(kind: type, milestone: Milestone) -> Cost:
    """On a rank: what a step of a milestone's class sends and holds."""
    one = torch.ones(1, WIDTH).double()
    counted, seen, early = traffic(milestone, kind, build(), one)
    sent = counted.messages_sent, counted.bytes_sent
    (most, kept), twice = memory(milestone, kind, one), 0
    if milestone.file == "fsdp":
        again, *_ = traffic(milestone, kind, Twice(), torch.ones(1, 5).double())
        twice = len(again.calls)
    return Cost(len(counted.calls), *sent, most, kept, seen.overlaps, early, seen.passed, twice)


def on_slow_link(milestone: Milestone, kind: type) -> float:
    """On a rank: the seconds of a step on the emulated link."""
    slowed = Slowed(Ours(algorithm="shared_memory", check=False), LINK)
    return seconds(milestone, kind, slowed, torch.ones(ROWS, WIDTH).double())


def cost_and_seconds(kind: type, milestone: Milestone) -> tuple[Cost, float]:
    """On a rank: both; the seconds first, as malloc is another one after `of_the_process`."""
    on_link = on_slow_link(milestone, kind)
    return cost(kind, milestone), on_link


# ---- the ring's ----

RING_BYTES = 2**20
RING_LINK = Link(alpha=1e-3, beta=1 / 50e6)  # slow, as four ranks wake each other six times


def ring_cost(all_reduce: Callable[[torch.Tensor], object]) -> tuple[int, int, float]:
    """On a rank: messages and bytes of an all-reduce of 1 MiB, and its seconds on the link."""
    tensor, took = torch.ones(RING_BYTES // 4), []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        with recorded(RING_LINK) as batches:
            all_reduce(tensor)
        took.append(time.perf_counter() - start)
    sent = sends(batches)
    return len(sent), sum(sent), min(took)
