"""The ring against the backend's own all-reduce, in turns, in one process group.

On a machine with fewer cores than ranks single times vary threefold with what the scheduler does.
So each round measures both, in random order, and medians over many rounds are compared.
"""

import random
import statistics
import time
from collections import defaultdict

import torch
import torch.distributed as dist

import minidist
from benchmarks.record import Row

SIZES = [4**k * 1024 for k in range(1, 9)]  # 4 KiB to 64 MiB


def _ring(tensor: torch.Tensor) -> None:
    minidist.all_reduce(tensor, check=False)


def _rounds(size: int) -> int:
    return max(15, min(61, (1 << 29) // size))


def _turns() -> dict[int, dict[str, list[tuple[float, float]]]]:
    """For each size: when each way started and ended on this rank, round by round."""
    ways = [("ring", _ring), ("native", dist.all_reduce)]
    order = random.Random(0)  # the same on every rank
    seen: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        spans = seen[size] = defaultdict(list)
        for round_number in range(1 + _rounds(size)):
            order.shuffle(ways)
            for name, way in ways:
                tensor.fill_(1)
                dist.barrier()
                start = time.monotonic()
                way(tensor)
                if round_number:  # the first warms up
                    spans[name].append((start, time.monotonic()))
    return seen


def _quartiles(spans: list[list[tuple[float, float]]]) -> list[float]:
    """Of the seconds from the first rank's start to the last one's end; one clock for all."""
    rounds = zip(*spans, strict=True)
    times = [max(end for _, end in each) - min(start for start, _ in each) for each in rounds]
    return statistics.quantiles(times, n=4)


def measure() -> list[Row]:
    """Rows for 2, 4 and 8 ranks: quartiles in milliseconds; `ratio` is of the medians."""
    rows: list[Row] = []
    for ranks in (2, 4, 8):
        seen = minidist.launch(_turns, ranks, device="cpu", timeout=600)
        for size in SIZES:
            ring, native = (
                _quartiles([rank[size][way] for rank in seen]) for way in ("ring", "native")
            )
            rows.append(
                {
                    "ranks": ranks,
                    "bytes": size,
                    "ring_ms": [round(1e3 * t, 3) for t in ring],
                    "native_ms": [round(1e3 * t, 3) for t in native],
                    "ratio": round(ring[1] / native[1], 3),
                    "rounds": _rounds(size),
                }
            )
    return rows
