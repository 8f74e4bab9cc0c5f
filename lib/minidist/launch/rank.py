"""What runs in each process that `launch` starts: set the rank up, run the function, report."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from io import FileIO, TextIOWrapper
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # exported by torch.distributed, but not typed

from minidist.errors import CommunicationError, MismatchError
from minidist.launch import pickling

STACK_SIGNAL = signal.SIGUSR1  # on it a rank writes down where it stands
SLACK = 5.0  # seconds a rank goes on after the deadline: its launcher tells better who hangs


@dataclass(frozen=True)
class Task:
    """What a rank is told by its launcher. `backend`: as torch wants it. `timeout`: seconds."""

    payload: bytes  # cloudpickle of (fn, args)
    rank: int
    ranks: int
    folder: Path
    environment: dict[str, str]
    backend: str
    device: str
    timeout: float


@dataclass(frozen=True)
class Returned:
    """The function came to its end. `value`: cloudpickle of what it returned."""

    value: bytes


@dataclass(frozen=True)
class Trace:
    """One exception.

    Attributes:
        summary: type and message, as the last line of a traceback.
        frames: (file, line, function), outermost first; the launcher adds the source lines, since
            only its process knows those of a notebook's cells.
    """

    summary: str
    frames: list[tuple[str, int, str]]


@dataclass(frozen=True)
class Raised:
    """The function, or the report of its value, raised.

    Attributes:
        when: `time.monotonic()`, the same clock for all processes of a host.
        traces: of the exception, then of its cause, and so on.
        error: cloudpickle of the exception, or None if it cannot be pickled.
        echo: as a rule it only tells that another rank has failed or was called wrongly.
    """

    when: float
    traces: list[Trace]
    error: bytes | None
    echo: bool


def main(task: Task, reports: Connection) -> None:
    """Entry point of a rank. Reports once, then waits for the launcher to end it.

    It must not leave by itself: its peers may still be receiving from it.
    """
    os.setsid()  # a group of its own: Ctrl-C reaches the launcher alone; helpers end with us
    _die_with_launcher(reports)
    _redirect(task.folder / f"{task.rank}.out")
    stacks = (task.folder / f"{task.rank}.stack").open("w")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    # The last resort if the launcher is gone and C code holds the interpreter's lock.
    faulthandler.dump_traceback_later(task.timeout + SLACK, exit=True, file=stacks)
    reports.send(_outcome(task))
    threading.Event().wait()  # the launcher ends this process


def _outcome(task: Task) -> Returned | Raised:
    try:
        _join(task)
        fn, args = pickling.loads(task.payload)
        value = fn(*args)
        if torch.device(task.device).type == "cuda":
            torch.cuda.synchronize()  # what went wrong there is this function's fault
        return Returned(_sendable(task.rank, value))
    except BaseException as error:  # SystemExit too: a rank that leaves early has failed
        return _raised(error)
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code has printed; the launcher kills, unflushed


def _join(task: Task) -> None:
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


def _sendable(rank: int, value: object) -> bytes:
    try:
        blob: bytes = pickling.dumps(value)
        return blob
    except Exception as error:
        raise TypeError(
            f"rank {rank}: the result, a {type(value).__name__}, cannot be sent back: {error}"
        ) from None


def _raised(error: BaseException) -> Raised:
    when = time.monotonic()
    try:
        blob = pickling.dumps(error)
        pickling.loads(blob)
    except Exception:
        blob = None
    chain = list(_chain(error))
    return Raised(when, [_trace(each) for each in chain], blob, any(map(_is_echo, chain)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, its cause, and so on: what Python would print."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _trace(error: BaseException) -> Trace:
    calls = traceback.extract_tb(error.__traceback__)
    frames = [(c.filename, c.lineno or 0, c.name) for c in calls if c.filename != __file__]
    return Trace("".join(traceback.format_exception_only(error)).strip(), frames)


def _is_echo(error: BaseException) -> bool:
    if isinstance(error, CommunicationError | MismatchError | dist.DistError):
        return True
    noise = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in noise)


def _redirect(path: Path) -> None:
    """Send what this process prints, from C++ too, to a file."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    sys.stdout = sys.stderr = TextIOWrapper(
        FileIO(1, "w", closefd=False), encoding="utf-8", errors="replace", write_through=True
    )


def _die_with_launcher(reports: Connection) -> None:
    """End this process and its helpers when the launcher is gone, or has closed its end."""

    def watch() -> None:
        wait([reports])  # nothing ever comes but the end
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
