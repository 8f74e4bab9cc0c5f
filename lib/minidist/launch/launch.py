"""Run a function on several ranks, each a process of its own, and get their values back.

Processes come from multiprocessing's fork server, which loads torch before it forks: the first
launch takes a second or two, later ones about a tenth of one. Ranks meet through a file, not a
port, and talk over the loopback interface only. For several hosts, and for scripts that should run
on one host or many, use torchrun.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from operator import index
from typing import Any

import torch

from minidist.errors import Interrupted
from minidist.launch import pickling
from minidist.launch import rank as rank_process
from minidist.launch.cleanup import Interrupts, Job, job
from minidist.launch.outcome import Died, Outcome, Raised, Returned
from minidist.launch.output import Output
from minidist.launch.report import Patience, failure, hang, stacks_of, where

GRACE = 0.3  # seconds that peers get to report after a failure, so that the earliest is found
ECHO_GRACE = 3.0  # the same while only echoes of a failure were heard
PRINT_EVERY = 1.0  # seconds after which what ranks have printed is passed on
LONGEST = 1e6  # seconds of timeout; waits in the operating system are counted in 32 bits
FILES, SPARE = 4, 32  # open files: a rank's in its launcher; those left for other things


def launch(
    fn: Callable[..., Any],
    ranks: int,
    *args: Any,
    device: str | None = None,
    timeout: float = 60.0,
) -> list[Any]:
    """Call `fn(*args)` on `ranks` ranks at once; return [its value on rank 0, on rank 1, ...].

    In the function torch.distributed is ready: `dist.get_rank()`, `dist.get_world_size()`. It may
    be defined in a notebook's cell, a script or a module; functions, arguments and values travel by
    cloudpickle, tensors on a GPU as copies on the CPU. torch, numpy and random are seeded with the
    rank. What ranks print comes out once a second and at the end, in the order of ranks, each line
    marked with its rank.

    Args:
        device: "cpu" (Gloo); "cuda" (one GPU to a rank over NCCL; if there are fewer GPUs than
            ranks they are shared, and messages go through host memory); None: "cuda" if there is
            a GPU for each rank, else "cpu". In fn, `minidist.device()` returns it; ranks on the CPU
            see no GPU.
        timeout: seconds from when all ranks have begun `fn` until those still running are killed;
            they have a minute to begin, and finding out where they hang takes up to two seconds.
            Where they stand still for ten seconds, that is printed; where they wait for one that
            has returned, they are killed after a few.

    Raises:
        RankError: a rank raised, died, or did not end in time. Named is the one that failed first;
            if it raised, its exception is the `__cause__`, unless that is longer than a book.
    """
    _check(fn, ranks, timeout)
    devices, backend = _devices(device, ranks)
    try:
        payload = pickling.dumps((fn, args))
    except Exception as error:
        raise TypeError(f"launch: fn and its arguments must be picklable: {error}") from error
    outputs: list[Output] = []
    try:
        with (
            Interrupts() as interrupts,
            ExitStack() as after,
            job(interrupts) as ours,
            interrupts.allowed(),
        ):
            (ours.folder / "call").write_bytes(payload)
            outcomes: list[Outcome | None] = []
            try:
                for r, on in enumerate(devices):
                    outputs.append(output := Output())
                    after.callback(output.close)
                    how = _environment(r, ranks, on), backend, timeout
                    ours.start(rank_process.main, output.writer, *how)
                    outcomes.append(None)
                    output.writer.close()  # the rank has it now
                within = _collect(ours, outcomes, outputs, timeout)
            except KeyboardInterrupt:
                stood = where(stacks_of(ours, outcomes, patience=2), named=True)
                raise Interrupted("\n".join(["where the ranks stood", "", *stood])) from None
            failed = any(isinstance(outcome, Raised | Died) for outcome in outcomes)
            stacks = {} if failed else stacks_of(ours, outcomes, patience=2)
        values = [each.value for each in outcomes if isinstance(each, Returned)]
        if len(values) < ranks:
            raise failure(outcomes) or hang(outcomes, stacks, within)
    finally:
        _show(outputs)
    return [pickling.loads(value) for value in values]


def _check(fn: object, ranks: int, timeout: float) -> None:
    if not callable(fn):
        raise TypeError(
            f"launch: fn must be callable, got {fn!r}; pass the function, not the result of a call"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (limit - len(os.listdir("/dev/fd")) - SPARE) // FILES
    if isinstance(ranks, bool) or not hasattr(ranks, "__index__"):
        raise TypeError(f"launch: ranks must be a whole number, got {ranks!r}")
    if index(ranks) < 1 or (limit != resource.RLIM_INFINITY and ranks > most):
        raise ValueError(
            f"launch: ranks must be from 1 to {most}, got {ranks!r}: each takes {FILES} open files "
            f"of this process's {limit} (see `ulimit -n`)"
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= LONGEST):
        raise ValueError(f"launch: timeout must be between 0 and {LONGEST:g} s, got {timeout!r}")


def _devices(device: str | None, ranks: int) -> tuple[list[str], str]:
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
        f"launch: {ranks} ranks share {gpus} GPU(s), so minidist's messages go through host memory "
        "by Gloo, and torch's own isend and irecv cannot be used"
    )
    return [f"cuda:{r % gpus}" for r in range(ranks)], "gloo"


def _environment(rank: int, ranks: int, device: str) -> dict[str, str]:
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
    if device == "cpu":  # or what torch itself puts on "the accelerator" would go to a GPU
        ours["CUDA_VISIBLE_DEVICES"] = ""
    return {"MINIDIST_CHECK": "1", **os.environ, **ours}


def _collect(
    ours: Job, outcomes: list[Outcome | None], outputs: Sequence[Output], timeout: float
) -> str:
    """Fill in the outcomes; return in what time those that are left did not end, in words."""
    processes = ours.processes
    patience: Patience | None = None
    start, all_begun = time.monotonic(), False
    deadline, next_print = start + rank_process.START + timeout, start + PRINT_EVERY
    while None in outcomes and (now := time.monotonic()) < deadline:
        running = [r for r, outcome in enumerate(outcomes) if outcome is None]
        ends = {end: r for r in running for end in processes[r].waitables}
        ends |= {outputs[r].reader: r for r in running if outputs[r].open}
        for r in {ends[end] for end in wait(list(ends), min(deadline, next_print) - now)}:
            outputs[r].read()
            outcomes[r] = outcome = processes[r].hear()
            if outcome and not isinstance(outcome, Returned):
                grace = ECHO_GRACE if outcome.echo else GRACE
                deadline = min(deadline, time.monotonic() + grace)
        if not all_begun and (all_begun := all(each.begun for each in processes)):
            deadline = min(deadline, time.monotonic() + timeout)
            patience = Patience(ours, outcomes, timeout)
        if time.monotonic() >= next_print:
            next_print += PRINT_EVERY
            _show(outputs)
            if patience and patience.look():
                return ", and nothing moves any more"
    return f" within {timeout:g} s"


def _show(outputs: Sequence[Output]) -> None:
    error = sys.exception()
    printed = [f"[rank {r}] {line}" for r, output in enumerate(outputs) for line in output.lines()]
    try:
        if printed:
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # it may know only ASCII
            text = "\n".join(printed).encode(encoding, "backslashreplace").decode(encoding)
            print(text, flush=True)
    except Exception:
        if error is None:
            raise
