"""How long a launch of an empty function takes: the first one, and those that follow."""

import statistics
import time

import minidist
from benchmarks.record import Row


def nothing() -> None:
    """The function that is launched."""


def _seconds(ranks: int) -> float:
    start = time.perf_counter()
    minidist.launch(nothing, ranks)
    return time.perf_counter() - start


def measure(runs: int = 15) -> list[Row]:
    """The first launch starts the fork server, so it comes first and once."""
    rows: list[Row] = [{"what": "first launch", "ranks": 4, "seconds": round(_seconds(4), 3)}]
    for ranks in (1, 2, 4, 8):
        times = [_seconds(ranks) for _ in range(runs)]
        median, worst = statistics.median(times), max(times)
        row = {"what": "later launch, median", "ranks": ranks, "seconds": round(median, 3)}
        rows.append({**row, "worst": round(worst, 3), "runs": runs})
    return rows
