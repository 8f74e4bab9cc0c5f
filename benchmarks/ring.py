"""The ring against the backend's own all-reduce, in turns, in one process group after another.

Where the ranks of a launch come to lie moves all its times, by a tenth or more. So each size has
several launches: the ratio is taken within each, and of these ratios the median is recorded.
"""

import statistics

import torch
import torch.distributed as dist

import minidist
from benchmarks import turns
from benchmarks.record import Row

SIZES = [4**k * 1024 for k in range(1, 9)]  # 4 KiB to 64 MiB
LAUNCHES, ROUNDS = 5, 15
WAYS = ("ring", "native")

Seen = list[dict[str, list[turns.Span]]]  # for each size: way → its turns


def _turns() -> Seen:
    return [_of_size(size) for size in SIZES]


def _of_size(size: int) -> dict[str, list[turns.Span]]:
    tensor = torch.ones(size // 4)
    ways = {
        "ring": lambda: minidist.all_reduce(tensor, check=False),
        "native": lambda: dist.all_reduce(tensor),
    }
    return turns.spans(ways, turns.calls(size), ROUNDS, lambda: tensor.fill_(1))


def measure() -> list[Row]:
    """Rows for 2, 4 and 8 ranks; times are the medians of each launch, in milliseconds."""
    rows: list[Row] = []
    for ranks in (2, 4, 8):
        launches = [
            minidist.launch(_turns, ranks, device="cpu", timeout=600) for _ in range(LAUNCHES)
        ]
        for at, size in enumerate(SIZES):
            ring, native = ([_median(seen, at, way) for seen in launches] for way in WAYS)
            ratios = [ours / theirs for ours, theirs in zip(ring, native, strict=True)]
            rows.append(
                {
                    "ranks": ranks,
                    "bytes": size,
                    "ring_ms": [round(1e3 * t, 3) for t in ring],
                    "native_ms": [round(1e3 * t, 3) for t in native],
                    "ratio": round(statistics.median(ratios), 3),
                    "rounds": ROUNDS,
                    "calls": turns.calls(size),
                }
            )
    return rows


def _median(seen: list[Seen], at: int, way: str) -> float:
    """Seconds of a call in one launch."""
    return turns.quartiles([rank[at][way] for rank in seen], turns.calls(SIZES[at]))[1]
