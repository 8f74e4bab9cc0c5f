"""What the machine can copy at best: the limits beside which bus bandwidths are seen."""

import statistics
from collections.abc import Iterator

import torch

import minidist
from benchmarks.gpu import turns
from benchmarks.gpu.section import Clock
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row


def measure(where: Where, clock: Clock) -> Iterator[Row]:
    """A row for each kind of copy."""
    (rows,) = World(1, where.device).launch(copies, where.copy, timeout=clock.share())
    yield from rows


def copies(nbytes: int) -> list[Row]:
    """On one rank. `GB/s` counts the bytes once, as bus bandwidths do."""
    device = minidist.device()
    here = torch.ones(nbytes, dtype=torch.uint8, device=device)
    targets = {"to memory of the same device": torch.empty_like(here)}
    if device.type == "cuda":
        targets["to pinned host memory"] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        for peer in range(1, torch.cuda.device_count()):
            there = torch.empty_like(here, device=f"cuda:{peer}")
            targets[f"to the memory of GPU {peer}"] = there
    rows = [_row(name, target, here, device) for name, target in targets.items()]
    if pinned := [target for name, target in targets.items() if "pinned" in name]:
        rows.append(_row("from pinned host memory", here, pinned[0], device))
    return rows


def _row(name: str, to: torch.Tensor, source: torch.Tensor, device: torch.device) -> Row:
    def copy() -> None:
        to.copy_(source, non_blocking=True)

    turns.seconds(copy, 1, device)
    times = [turns.seconds(copy, 3, device) for _ in range(7)]
    rate = source.nbytes / statistics.median(times)
    us = turns.quartiles(times)
    return {"copy": name, "bytes": source.nbytes, "us": us, "GB/s": float(f"{rate / 1e9:.4g}")}
