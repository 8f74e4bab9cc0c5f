"""How long a launch of an empty function takes: the first one, and those that follow."""

import statistics
import time
from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup

FIRST = 4  # ranks


def nothing() -> None:
    """The function that is launched."""


def _seconds(setup: Setup, clock: Clock) -> float:
    start = time.perf_counter()
    setup.launch(nothing, timeout=clock.left())
    return time.perf_counter() - start


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """The first launch starts the fork server, so it comes first and once."""
    first = _seconds(Setup(FIRST, scope.device), clock)
    yield {"what": "first launch", "ranks": FIRST, "seconds": round(first, 3)}
    for setup in scope.setups:
        times = [_seconds(setup, clock) for _ in range(scope.rounds or 1)]
        median, worst = round(statistics.median(times), 3), round(max(times), 3)
        row = {"what": "later launch, median", "ranks": setup.ranks, "seconds": median}
        yield {**row, "worst": worst, "runs": len(times)}
