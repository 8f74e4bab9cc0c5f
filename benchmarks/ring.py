"""The ring against the backend's own all-reduce, in turns, in one process group."""

import torch
import torch.distributed as dist

import minidist
from benchmarks import turns
from benchmarks.record import Row

SIZES = [4**k * 1024 for k in range(1, 9)]  # 4 KiB to 64 MiB


def _turns() -> list[dict[str, list[turns.Span]]]:
    seen = []
    for size in SIZES:
        tensor = torch.ones(size // 4)
        ways = {
            "ring": lambda tensor=tensor: minidist.all_reduce(tensor, check=False),
            "native": lambda tensor=tensor: dist.all_reduce(tensor),
        }
        much = turns.calls(size), turns.rounds(size)
        seen.append(turns.spans(ways, *much, lambda tensor=tensor: tensor.fill_(1)))
    return seen


def measure() -> list[Row]:
    """Rows for 2, 4 and 8 ranks: quartiles in milliseconds; `ratio` is of the medians."""
    rows: list[Row] = []
    for ranks in (2, 4, 8):
        seen = minidist.launch(_turns, ranks, device="cpu", timeout=600)
        for at, size in enumerate(SIZES):
            ring, native = (
                turns.quartiles([rank[at][way] for rank in seen], turns.calls(size))
                for way in ("ring", "native")
            )
            rows.append(
                {
                    "ranks": ranks,
                    "bytes": size,
                    "ring_ms": [round(1e3 * t, 3) for t in ring],
                    "native_ms": [round(1e3 * t, 3) for t in native],
                    "ratio": round(ring[1] / native[1], 3),
                    "rounds": turns.rounds(size),
                    "calls": turns.calls(size),
                }
            )
    return rows
