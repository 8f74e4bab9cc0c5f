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


def _turns() -> dict[int, dict[str, list[float]]]:
    """For each size: the seconds of each way, round by round, as this rank saw them."""
    ways = [("ring", _ring), ("native", dist.all_reduce)]
    order = random.Random(0)  # the same on every rank
    seen: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        times = seen[size] = defaultdict(list)
        for round_number in range(1 + _rounds(size)):
            order.shuffle(ways)
            for name, way in ways:
                dist.barrier()
                start = time.perf_counter()
                way(tensor)
                dist.barrier()
                if round_number:  # the first warms up
                    times[name].append(time.perf_counter() - start)
            tensor.fill_(1)
    return seen


def measure() -> list[Row]:
    """Rows for 2, 4 and 8 ranks: quartiles in milliseconds; `ratio` is of the medians."""
    rows: list[Row] = []
    for ranks in (2, 4, 8):
        (seen, *_) = minidist.launch(_turns, ranks, device="cpu", timeout=600)
        for size, times in seen.items():
            ring, native = (statistics.quantiles(times[way], n=4) for way in ("ring", "native"))
            rows.append(
                {
                    "ranks": ranks,
                    "bytes": size,
                    "ring_ms": [round(1e3 * t, 3) for t in ring],
                    "native_ms": [round(1e3 * t, 3) for t in native],
                    "ratio": round(ring[1] / native[1], 3),
                    "rounds": len(times["ring"]),
                }
            )
    return rows
