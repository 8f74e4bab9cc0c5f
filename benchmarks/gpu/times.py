"""Times of minidist's collectives beside torch's own, in turns, and bus bandwidths.

The bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md in github.com/NVIDIA/nccl-tests): what
each rank's link would have to carry at least, by the time that it took.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

import minidist
from benchmarks.bus import FACTORS, busbw
from benchmarks.gpu import turns
from benchmarks.gpu.section import in_each_world
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row

NO_TIME = "no time for enough rounds"


@in_each_world
def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
    """A row for each collective and size."""
    yield from world.launch(on_rank, where.sizes, 0.7 * seconds, timeout=seconds)[0]


def on_rank(sizes: tuple[int, ...], budget: float) -> list[Row]:
    """What all ranks measure together, the same rows on each, in about `budget` seconds."""
    cells = [(name, nbytes) for nbytes in sizes for name in FACTORS]
    clock = turns.Shared(budget)
    rows: list[Row] = []
    smaller: dict[str, Row] = {}  # collective → its row for the size before
    for done, (name, nbytes) in enumerate(cells):
        left = clock.left()
        if expected(smaller.get(name), nbytes) * (2 + turns.LEAST_ROUNDS) > left:
            row: Row = {"collective": name, "bytes": nbytes, "left_out": NO_TIME}
        else:
            row = _row(name, nbytes, left / (len(cells) - done))
        smaller[name] = row
        rows.append(row)
    return rows


def expected(smaller: Row | None, nbytes: int) -> float:
    """Seconds for a call of each way, by the times of a smaller size, if it was measured."""
    if smaller is None:
        return 0.0
    if "left_out" in smaller:
        return math.inf
    calls = sum(smaller[key][1] for key in ("ours_us", "native_us") if key in smaller)
    return float(calls) / 1e6 * nbytes / smaller["bytes"]


def _row(collective: str, nbytes: int, budget: float) -> Row:
    ranks, device = dist.get_world_size(), minidist.device()
    part = max(1, nbytes // 4 // ranks)
    whole, mine = (torch.ones(n, device=device) for n in (part * ranks, part))
    ways = _ways(collective, whole, mine)
    row: Row = {"collective": collective, "bytes": whole.nbytes}
    if refusal := turns.refusal(ways["native"]):
        row["native_refuses"] = refusal
        del ways["native"]
    seen, calls = turns.race(ways, budget, lambda: whole.fill_(1), device)
    if not seen:
        return {**row, "left_out": NO_TIME}
    row |= {"calls": calls, "rounds": len(seen["ours"])}
    for way, times in seen.items():
        row[f"{way}_us"] = turns.quartiles(times)
        rate = busbw(collective, whole.nbytes, ranks, row[f"{way}_us"][1] / 1e6)
        row[f"{way}_busbw_GB/s"] = float(f"{rate / 1e9:.4g}")
    if "native" in seen:
        row["ratio"] = round(row["ours_us"][1] / row["native_us"][1], 3)
    return row


def _ways(collective: str, whole: torch.Tensor, mine: torch.Tensor) -> dict[str, turns.Call]:
    """Ours and torch's own, which has other names from 2.13 on."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    ours, native, arguments = {
        "all_reduce": (minidist.all_reduce, dist.all_reduce, (whole,)),
        "reduce_scatter_tensor": (minidist.reduce_scatter_tensor, scatter, (mine, whole)),
        "all_gather_into_tensor": (minidist.all_gather_into_tensor, gather, (whole, mine)),
    }[collective]
    return {"ours": partial(ours, *arguments, check=False), "native": partial(native, *arguments)}
