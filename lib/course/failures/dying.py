"""A rank that dies, one that hangs, one that runs out of memory, and one that is slow."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import minidist
from course.failures.case import Case, Kit
from minidist.profiler.spans import COMMUNICATION, Span
from minidist.profiler.timeline import mark

ROOM = 256 << 20  # bytes that a rank may take on top of what it has
SAMPLE = 1 << 20  # bytes that the activations of a sample take


def dies(kit: Kit) -> None:
    """Rank 1 is killed, as by the kernel, a scheduler or a dying host."""
    gradient = torch.ones(4)
    kit.all_reduce(gradient)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kit.all_reduce(gradient)


def hangs(kit: Kit) -> None:
    """Rank 1 does not come back from what it does between two steps."""
    gradient = torch.ones(4)
    kit.all_reduce(gradient)
    if dist.get_rank() == 1:
        stands_still()
    kit.all_reduce(gradient)


def stands_still() -> None:
    """A disk that does not answer, a lock that nobody opens, a breakpoint."""
    threading.Event().wait()


def hangs_guarded(kit: Kit) -> str:
    """Rank 0 asks, once in a while, whether all still come; it names those that do not."""
    kit.barrier()
    try:
        if dist.get_rank() != 1:
            dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    return "came" if dist.get_rank() == 0 else ""


def out_of_memory(kit: Kit) -> None:
    """Rank 1 drew the batch with the long samples."""
    kit.all_reduce(torch.ones(4))
    _limit_memory()
    _forward(samples=512 if dist.get_rank() == 1 else 16)
    kit.all_reduce(torch.ones(4))


def out_of_memory_repaired(kit: Kit) -> str:
    """The long batch is taken in pieces."""
    kit.all_reduce(torch.ones(4))
    _limit_memory()
    samples = 512 if dist.get_rank() == 1 else 16
    pieces = [_forward(min(64, samples - start)) for start in range(0, samples, 64)]
    kit.all_reduce(torch.ones(4))
    return f"{len(pieces)} pieces"


def _limit_memory() -> None:
    """Let this process have `ROOM` more, of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _forward(samples: int) -> int:
    return torch.empty(samples * SAMPLE, dtype=torch.uint8).nbytes


def straggles(kit: Kit) -> str:
    """Rank 1 is slow: all steps are as long as its own, and the *others* seem to communicate."""
    waited = [span for span in straggler_spans(kit) if span.lane == COMMUNICATION]
    return f"{1e3 * sum(span.end - span.start for span in waited):.0f} ms in all_reduce"


def straggler_spans(kit: Kit, seconds: float = 0.1) -> list[Span]:
    """The same as spans of this rank, for `plots.gantt`."""
    kit.all_reduce(torch.ones(4))
    with minidist.timeline() as line:
        with mark("forward"):
            if dist.get_rank() == 1:
                while len(list(kit.folder.glob("*.there"))) < dist.get_world_size() - 1:
                    time.sleep(0.001)
                time.sleep(seconds)
        with mark("all_reduce", COMMUNICATION):
            (kit.folder / f"{dist.get_rank()}.there").touch()
            kit.all_reduce(torch.ones(4))
    return line.spans


CASES = [
    Case(
        "A rank dies",
        dies,
        None,
        "the first rank that torchrun names, and its signal; the others' broken connections only "
        "echo it",
        "restart from the last checkpoint (python -m minidist.train), or regroup the survivors "
        "(course.training.regroup)",
        "checkpoints, and torchrun --max-restarts",
    ),
    Case(
        "A rank hangs",
        hangs,
        None,
        "the stacks: the rank that is in no collective",
        "depends on what it waits for; a timeout on each read of a disk or a network",
        "dist.monitored_barrier(timeout), which names who has not come; a timeout of the group",
        ranks=3,
    ),
    Case(
        "A rank runs out of memory",
        out_of_memory,
        out_of_memory_repaired,
        "the size of its own batch: sequence lengths differ between ranks",
        "smaller or split batches; samples sorted into batches of like length",
        "the peak memory of each rank in the log, not of rank 0 alone",
    ),
    Case(
        "A straggler",
        straggles,
        None,
        "the timeline of all ranks: who waits least in the all-reduce is the slow one",
        "what is slow there: its host, its GPU's clock, its data",
        "each rank's time outside of collectives in the log",
        ranks=3,
    ),
]
