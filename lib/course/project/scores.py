"""What a step of a milestone costs: calls, bytes, memory, and time on an emulated link."""

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
from minidist.comm.comm import Around, Comm, Pending, Start
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

    def around(self, name: str, full: torch.Tensor, call: Start, async_op: bool) -> Pending:
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
    trained.step(trained.model(inputs).square().mean(), after_backward)


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


def fastest(work: Callable[[], object]) -> float:
    """The seconds of the fastest round: what slows one down is other work on the machine."""
    took = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        work()
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


def score(kind: type, milestone: Milestone) -> tuple[tuple[int, ...], float]:
    """On a rank: calls, messages, bytes and the peak of a step, and its seconds on the link."""
    slowed = Slowed(Ours(algorithm="shared_memory", check=False), LINK)
    trained = milestone.train(kind, build(), slowed, CAP)
    rows = torch.ones(ROWS, WIDTH).double()
    seconds = fastest(lambda: step(trained, rows))  # first: `of_the_process` changes malloc
    return cost(kind, milestone)[:4], seconds


def least_bytes(milestone: Milestone, ranks: int) -> int:
    """That all ranks together must send in a step: each phase moves (N - 1) times the model."""
    weights = sum(parameter.nbytes for parameter in build().parameters())
    return milestone.moved * (ranks - 1) * weights


# ---- the ring's ----

RING_BYTES = 2**20
RING_LINK = Link(alpha=1e-3, beta=1 / 50e6)  # slow, as four ranks wake each other six times


def ring_score(all_reduce: Callable[[torch.Tensor], object]) -> tuple[tuple[int, int], float]:
    """On a rank: messages and bytes of an all-reduce of 1 MiB, and its seconds on the link."""
    tensor, sent = torch.ones(RING_BYTES // 4), list[int]()

    def once() -> None:
        with recorded(RING_LINK) as batches:
            all_reduce(tensor)
        sent[:] = sends(batches)

    seconds = fastest(once)
    return (len(sent), sum(sent)), seconds


def ring_model(ranks: int) -> tuple[int, int, float]:
    """What the cost model says of the same: messages, bytes and seconds."""
    steps, chunk = 2 * (ranks - 1), RING_BYTES // ranks
    return steps, steps * chunk, steps * (RING_LINK.alpha + RING_LINK.beta * chunk)
