"""Run a function on several ranks, each a process of its own, and get their values back.

Processes come from multiprocessing's fork server, which loads torch before it forks: the first
launch takes a second or two, later ones about a tenth of one. Ranks meet through a file, not a
port, and talk over the loopback interface only. For several hosts, and for scripts that should run
on one host or many, use torchrun.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from operator import index
from typing import Any, SupportsIndex

import torch

from minidist.errors import RankError
from minidist.launch import cleanup as tidy
from minidist.launch import pickling
from minidist.launch.failure import Outcome, failed, failure, is_echo, is_whole
from minidist.launch.process import Member
from minidist.launch.rank import Returned, Task

GRACE = 0.3  # seconds that peers get to report after a failure, so that the earliest is found
ECHO_GRACE = 3.0  # the same while only echoes of a failure were heard
LONGEST = 1e6  # seconds of timeout; waits in the operating system are counted in 32 bits


def launch(
    fn: Callable[..., Any],
    ranks: int,
    *args: Any,
    device: str | None = None,
    timeout: float = 60.0,
) -> list[Any]:
    """Call `fn(*args)` on `ranks` ranks at once; return [its value on rank 0, on rank 1, ...].

    In the function torch.distributed is ready: `dist.get_rank()`, `dist.get_world_size()`. It may
    be defined in a notebook's cell, a script or a module; functions and arguments travel by
    cloudpickle. torch, numpy and random are seeded with the rank. What ranks print comes out when
    they have ended, in the order of ranks, each line marked with its rank.

    Args:
        fn: runs once on each rank.
        ranks: number of ranks, at least 1.
        args: passed to fn on every rank.
        device: "cpu" (Gloo); "cuda" (one GPU to a rank over NCCL; if there are fewer GPUs than
            ranks they are shared, and messages go through host memory); None: "cuda" if there is
            a GPU for each rank, else "cpu". In fn, `minidist.device()` tells.
        timeout: seconds from the start of the ranks until those still running are ended; asking
                them where they stand takes up to two more.

    Raises:
        ValueError: ranks, device or timeout out of range, or no GPU where one was asked for.
        TypeError: fn or args cannot be sent to another process.
        RankError: a rank raised, was killed, left without a word, or did not end in time. Named is
            the rank that failed first; if it raised, its exception is the `__cause__`.
    """
    _check(ranks, timeout)
    devices, backend = _devices(device, ranks)
    payload = _pickled(fn, args)
    crew: list[Member] = []
    with tidy.folder() as folder:
        tasks = [
            Task(payload, r, ranks, folder, _environment(r, ranks, on), backend, on, timeout)
            for r, on in enumerate(devices)
        ]
        try:
            outcomes = _run(tasks, crew, timeout)
        finally:
            _show(crew)
    return [_value(r, outcome) for r, outcome in enumerate(outcomes)]


def device() -> torch.device:
    """The device of the calling rank: its GPU, or the CPU."""
    if name := os.environ.get("MINIDIST_DEVICE"):
        return torch.device(name)
    local = os.environ.get("LOCAL_RANK")  # torchrun's; the global rank is wrong on a second node
    use_gpu = local is not None and torch.cuda.is_available()
    return torch.device(f"cuda:{local}" if use_gpu else "cpu")


def _run(tasks: list[Task], crew: list[Member], timeout: float) -> list[Outcome]:
    """Start the ranks, wait for their words, raise if one failed; no rank is left running."""
    stacks: dict[int, str] = {}
    with tidy.Interrupts() as interrupts:
        try:
            with interrupts.allowed():
                for task in tasks:
                    crew.append(Member(task))
                outcomes = _collect(crew, timeout)
                if None in outcomes and not any(map(failed, outcomes)):
                    stacks = _stacks([crew[r] for r, word in enumerate(outcomes) if word is None])
        finally:
            for member in crew:  # all at once, or the last ones see broken connections
                member.kill()
            for member in crew:
                member.close()
    if error := failure(outcomes, stacks, timeout):
        raise error
    return outcomes


def _show(crew: list[Member]) -> None:
    """Print what ranks have said. Where nobody can read it, that must not hide what went wrong."""
    error = sys.exception()
    try:
        for member in crew:
            member.show_output()
    except Exception:
        if error is None:
            raise


def _collect(crew: list[Member], timeout: float) -> list[Outcome]:
    """Wait for a word from each rank until the deadline; after a failure, only a little longer."""
    outcomes: list[Outcome] = [None] * len(crew)
    deadline = time.monotonic() + timeout
    while None in outcomes and (left := deadline - time.monotonic()) > 0:
        silent = [r for r, word in enumerate(outcomes) if word is None]
        ends: dict[Any, int] = {crew[r].reports: r for r in silent}
        ends |= {crew[r].process.sentinel: r for r in silent}
        for r in {ends[end] for end in wait(list(ends), left)}:
            outcomes[r] = crew[r].hear()
            if failed(outcomes[r]):
                grace = ECHO_GRACE if is_echo(outcomes[r]) else GRACE
                deadline = min(deadline, time.monotonic() + grace)
    return outcomes


def _stacks(crew: list[Member]) -> dict[int, str]:
    """Where these ranks stand now, as far as they tell within two seconds."""
    for member in crew:
        member.ask_stack()
    patience = time.monotonic() + 2
    while time.monotonic() < patience and not all(is_whole(member.stack()) for member in crew):
        time.sleep(0.02)
    return {member.task.rank: member.stack() for member in crew}


def _value(rank: int, outcome: Outcome) -> Any:
    assert isinstance(outcome, Returned)
    try:
        return pickling.loads(outcome.value)
    except Exception as error:
        raise RankError(f"rank {rank}: its result cannot be read here: {error}", [rank]) from error


def _check(ranks: int, timeout: float) -> None:
    if isinstance(ranks, bool) or not isinstance(ranks, SupportsIndex) or index(ranks) < 1:
        raise ValueError(f"launch: ranks must be a whole number of at least 1, got {ranks!r}")
    if not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise ValueError(f"launch: timeout must be between 0 and {LONGEST:g} s, got {timeout!r}")


def _devices(device: str | None, ranks: int) -> tuple[list[str], str]:
    """A device for each rank, and the backend that connects them."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"launch: device must be 'cpu', 'cuda' or None, got {device!r}")
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not gpus:
        raise ValueError("launch: device='cuda', but torch finds no GPU here")
    if gpus >= ranks:
        return [f"cuda:{r}" for r in range(ranks)], "cpu:gloo,cuda:nccl"
    if device != "cuda":
        return ["cpu"] * ranks, "gloo"
    print(
        f"launch: {ranks} ranks share {gpus} GPU{'s' if gpus > 1 else ''}; "
        "their messages go through host memory over Gloo, since NCCL wants a GPU for each rank"
    )
    return [f"cuda:{r % gpus}" for r in range(ranks)], "gloo"


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        whole: bytes = pickling.dumps((fn, args))
        return whole
    except Exception as error:
        parts = [("fn", fn), *((f"argument {i}", arg) for i, arg in enumerate(args))]
        bad = next((name for name, part in parts if not _can_pickle(part)), "the call")
        raise TypeError(f"launch: {bad} cannot be sent to another process: {error}") from error


def _can_pickle(part: object) -> bool:
    try:
        pickling.dumps(part)
    except Exception:
        return False
    return True


def _environment(rank: int, ranks: int, device: str) -> dict[str, str]:
    """The launcher's environment as it is now (the fork server's is as old as that), and ours."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": loopback,  # or Gloo listens on the host's own address
        "NCCL_SOCKET_IFNAME": loopback,
        "MINIDIST_DEVICE": device,
    }
    return {"MINIDIST_CHECK": "1", **os.environ, **ours}
