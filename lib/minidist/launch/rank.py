"""What runs in each process that `launch` starts: set the rank up, run the function, report."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import threading
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # exported by torch.distributed, but not typed

from minidist.launch import pickling
from minidist.launch.outcome import outcome_of
from minidist.launch.output import redirect
from minidist.launch.process import Launcher

STACK_SIGNAL = signal.SIGUSR1  # on it a rank writes down where it stands
SLACK = 5.0  # seconds a rank goes on after the deadline: its launcher tells better who hangs


@dataclass(frozen=True)
class Task:
    """What a rank is to do."""

    rank: int
    ranks: int
    folder: Path  # with `call`, cloudpickle of (fn, args), and `RANK.stack`, where the rank hangs
    environment: dict[str, str]
    backend: str
    device: str
    timeout: float


def main(launcher: Launcher, task: Task, output: Connection) -> None:
    """Entry point of a rank. It reports once, and then waits to be killed.

    It must not leave by itself: its peers may still be receiving from it.
    """
    redirect(output)
    stacks = (task.folder / f"{task.rank}.stack").open("w")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    outcome = outcome_of(lambda: _run(task), __file__)
    launcher.report(outcome)
    threading.Event().wait()


def _run(task: Task) -> object:
    try:
        _join_group(task)
        fn, args = pickling.loads((task.folder / "call").read_bytes())
        value = fn(*args)
        if torch.device(task.device).type == "cuda":
            torch.cuda.synchronize()  # what went wrong there is this function's fault
        return value
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code has printed; the launcher kills, unflushed


def _join_group(task: Task) -> None:
    """Make this process rank `task.rank` of `task.ranks`."""
    os.environ.clear()
    os.environ.update(task.environment)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(task.rank)
    torch.set_num_threads(1)  # ranks share the cores
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        task.backend,
        store=FileStore(str(task.folder / "rendezvous"), task.ranks),
        rank=task.rank,
        world_size=task.ranks,
        timeout=timedelta(seconds=task.timeout + SLACK),
        device_id=device if "nccl" in task.backend else None,
    )
