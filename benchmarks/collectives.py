"""algorithm="auto" against the backend's own, in turns: all-reduce and its two halves.

And the all-reduce with the check between ranks that `launch` switches on, beside the same without.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import minidist
from benchmarks import turns
from benchmarks.bus import busbw
from benchmarks.record import Row

SIZES = [4**k * 1024 for k in range(1, 9)]  # 4 KiB to 64 MiB
NAMES = {  # as they are recorded -> as torch calls them
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_gather": "all_gather_into_tensor",
}
# torch 2.13 has new names, and warns of the old ones
NATIVE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
NATIVE_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _ways(name: str, whole: torch.Tensor, ranks: int) -> dict[str, Callable[[], object]]:
    part = torch.ones(len(whole) // ranks)
    auto = {"algorithm": "auto", "check": False}
    return {
        "all_reduce": {
            "auto": lambda: minidist.all_reduce(whole, **auto),
            "checked": lambda: minidist.all_reduce(whole, algorithm="auto", check=True),
            "native": lambda: dist.all_reduce(whole),
        },
        "reduce_scatter": {
            "auto": lambda: minidist.reduce_scatter_tensor(part, whole, **auto),
            "native": lambda: NATIVE_SCATTER(part, whole),
        },
        "all_gather": {
            "auto": lambda: minidist.all_gather_into_tensor(whole, part, **auto),
            "native": lambda: NATIVE_GATHER(whole, part),
        },
    }[name]


def _turns() -> dict[tuple[str, int], dict[str, list[turns.Span]]]:
    seen = {}
    for name in NAMES:
        for size in SIZES:
            whole = torch.ones(size // 4)
            ways = _ways(name, whole, dist.get_world_size())
            much = turns.calls(size), turns.rounds(size)
            seen[name, size] = turns.spans(ways, *much, lambda whole=whole: whole.fill_(1))
    return seen


def _copy(nbytes: int) -> float:
    """Bytes per second of a copy, by one thread, as each rank has one."""
    source, target = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
    torch.set_num_threads(1)
    times = []
    for _ in range(2 + turns.rounds(nbytes)):
        start = time.perf_counter()
        for _ in range(turns.calls(nbytes)):
            target.copy_(source)
        times.append((time.perf_counter() - start) / turns.calls(nbytes))
    return nbytes / statistics.median(times[2:])


def measure() -> list[Row]:
    """Quartiles in milliseconds, ratio of the medians, bus bandwidth in GB/s."""
    rows: list[Row] = []
    for size in SIZES:
        (copy,) = minidist.launch(_copy, 1, size, device="cpu")
        rows.append({"what": "copy", "bytes": size, "gb_per_s": round(copy / 1e9, 2)})
    for ranks in (2, 4, 8):
        seen = minidist.launch(_turns, ranks, device="cpu", timeout=900)
        for name in NAMES:
            for size in SIZES:
                times = {
                    way: turns.quartiles(
                        [rank[name, size][way] for rank in seen], turns.calls(size)
                    )
                    for way in ("auto", "native", "checked")
                    if way in seen[0][name, size]
                }
                bus = {
                    f"{way}_bus_gb_per_s": round(busbw(NAMES[name], size, ranks, t[1]) / 1e9, 6)
                    for way, t in times.items()
                    if way != "checked"
                }
                ms = {f"{way}_ms": [round(1e3 * t, 3) for t in q] for way, q in times.items()}
                ratio = round(times["auto"][1] / times["native"][1], 3)
                row = {"what": name, "ranks": ranks, "bytes": size, **ms, "ratio": ratio, **bus}
                if "checked" in times:
                    row["checked_ratio"] = round(times["checked"][1] / times["auto"][1], 3)
                rows.append(row)
    return rows
