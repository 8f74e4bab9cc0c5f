"""The bandwidth of copies within and between memories: what bus bandwidths are compared with."""

from collections.abc import Iterator

import torch

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.turns import Repeats, digits, milliseconds, quartiles, take_turns

REPEATS = Repeats(calls=3, rounds=7)


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each kind of copy."""
    (rows,) = Setup(1, scope.device).launch(copies, scope.copy_bytes, timeout=clock.left())
    yield from rows


def copies(nbytes: int) -> list[Row]:
    """On one rank: from its device to each memory that it reaches, and back from the host."""
    device = minidist.device()
    here = torch.ones(nbytes, dtype=torch.uint8, device=device)
    targets = {"to memory of the same device": torch.empty_like(here)}
    if device.type == "cuda":
        targets["to pinned host memory"] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        for peer in range(1, torch.cuda.device_count()):
            there = torch.empty_like(here, device=f"cuda:{peer}")
            targets[f"to the memory of GPU {peer}"] = there
    rows = [copy(here, target, REPEATS) | {"copy": name} for name, target in targets.items()]
    if (pinned := targets.get("to pinned host memory")) is not None:
        rows.append(copy(pinned, here, REPEATS) | {"copy": "from pinned host memory"})
    return rows


def copy(source: torch.Tensor, target: torch.Tensor, repeats: Repeats) -> Row:
    """On one rank, by one thread; `gb_per_s` counts the bytes once, as bus bandwidths do."""
    torch.set_num_threads(1)
    ways = {"copy": lambda: target.copy_(source, non_blocking=True)}
    seconds = quartiles([take_turns(ways, repeats)])["copy"]
    rate = digits(source.nbytes / seconds[1] / 1e9)
    ms = milliseconds(seconds)
    return {"what": "copy", "bytes": source.nbytes, "ms": ms, "gb_per_s": rate}
