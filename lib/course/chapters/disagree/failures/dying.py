"""A rank that dies, one that hangs, one that runs out of memory, and one that is slow."""

import os
import resource
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import minidist
from course.chapters.disagree.failures.case import Case, Kit
from minidist.profiler.spans import COMMUNICATION, Span
from minidist.profiler.timeline import mark

ROOM = 256 << 20  # bytes that a rank may take on top of what it has
TOKEN = 8 << 10  # bytes that the activations of a token take
LENGTHS = (  # tokens of the texts in each rank's batch
    [310, 120, 450, 90, 200, 380, 150, 270],
    [240, 510, 130, 8192, 170, 90, 330, 60],
)


def case_0(kit: Kit) -> None:
    """Rank 1 is killed, as by the kernel, a scheduler or a dying host."""
    gradient = torch.ones(4)
    kit.all_reduce(gradient)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kit.all_reduce(gradient)


def case_2(kit: Kit) -> None:
    """Rank 1 does not come back from what it does between two steps."""
    gradient = torch.ones(4)
    kit.all_reduce(gradient)
    if dist.get_rank() == 1:
        next_batch()
    kit.all_reduce(gradient)


def next_batch() -> None:
    """A disk that does not answer, a lock that nobody opens, a breakpoint."""
    threading.Event().wait()


def next_batch_within(seconds: float) -> None:
    """The same, with a limit."""
    if not threading.Event().wait(seconds):
        raise TimeoutError(f"no batch within {seconds} s")


def case_1(kit: Kit) -> None:
    """One of rank 1's texts is long, and all are padded to its length."""
    kit.all_reduce(torch.ones(4))
    _limit_memory()
    texts = LENGTHS[dist.get_rank()]
    forward(texts)
    kit.all_reduce(torch.ones(4))


def forward(texts: list[int]) -> int:
    """Take the memory of a batch that is padded to its longest text."""
    return torch.empty(len(texts) * max(texts) * TOKEN, dtype=torch.uint8).nbytes


def split(texts: list[int], tokens: int) -> list[list[int]]:
    """A batch in pieces that have at most so many tokens each, padding included."""
    pieces: list[list[int]] = [[]]
    for length in sorted(texts):
        if (len(pieces[-1]) + 1) * length > tokens:
            pieces.append([])
        pieces[-1].append(length)
    return pieces


def _limit_memory() -> None:
    """Let this process have `ROOM` more, of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def case_8(kit: Kit) -> list[Span]:
    """Rank 1 is slow: all steps are as long as its own, and the *others* seem to communicate."""
    kit.all_reduce(torch.ones(4))
    with minidist.timeline() as line:
        with mark("forward"):
            if dist.get_rank() == 1:
                while len(list(kit.folder.glob("*.there"))) < dist.get_world_size() - 1:
                    time.sleep(0.001)
                time.sleep(0.1)
        with mark("all_reduce", COMMUNICATION):
            (kit.folder / f"{dist.get_rank()}.there").touch()
            kit.all_reduce(torch.ones(4))
    return line.spans


CASES = [
    Case("A rank dies", case_0),
    Case("A rank hangs", case_2, ranks=3),
    Case("A rank runs out of memory", case_1),
    Case("A straggler", case_8, ranks=3),
]
