"""The process of a rank, which `launch` starts: set the rank up, run the function, report."""

import ctypes
import faulthandler
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # exported by torch.distributed, but not typed

from minidist.launch import pickling
from minidist.launch.outcome import outcome_of
from minidist.launch.output import redirect
from minidist.launch.process import Launcher

STACK_SIGNAL = signal.SIGUSR1  # on it a rank writes down where it stands
START = 60.0  # seconds that ranks have to meet, before the caller's timeout begins
SLACK = 5.0  # seconds a rank goes on after the deadline: its launcher tells better who hangs


def main(
    launcher: Launcher, output: Connection, environ: dict[str, str], backend: str, timeout: float
) -> None:
    """Entry point of a rank, which its environment names. It reports once, and waits to be killed.

    It must not leave by itself: its peers may still be receiving from it. In the launcher's folder
    `call` is cloudpickle of (fn, args), and `RANK.stack` says where the rank hangs.
    """
    redirect(output)
    os.environ.clear()
    os.environ.update(environ)
    stacks = (launcher.folder / f"{os.environ['RANK']}.stack").open("w")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    outcome = outcome_of(lambda: _run(launcher, backend, timeout), __file__)
    launcher.report(outcome)
    threading.Event().wait()


def _yield_cores() -> None:
    """Let a rank that a message wakes wait until the rank that runs on its core pauses.

    Where ranks share cores, whoever is woken preempts its sender, often while that holds the lock
    of a connection, for which Gloo's thread then spins. SCHED_BATCH: see sched(7).
    """
    if sys.platform == "linux":
        with suppress(OSError):  # where a sandbox forbids it, ranks are merely slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _run(launcher: Launcher, backend: str, timeout: float) -> object:
    try:
        device = torch.device(os.environ["MINIDIST_DEVICE"])
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(rank)
        torch.set_num_threads(1)  # ranks share the cores
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            _yield_cores()
        dist.init_process_group(
            backend,
            store=FileStore(str(launcher.folder / "rendezvous"), ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=START + timeout + SLACK),
            device_id=device if "nccl" in backend else None,
        )
        fn, args = pickling.loads((launcher.folder / "call").read_bytes())
        launcher.begin()
        value = fn(*args)
        if device.type == "cuda":
            torch.cuda.synchronize()  # what went wrong there is this function's fault
        return value
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code has printed; the launcher kills, unflushed
