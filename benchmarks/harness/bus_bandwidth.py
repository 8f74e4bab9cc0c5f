"""Bus bandwidth as nccl-tests define it (doc/PERFORMANCE.md in github.com/NVIDIA/nccl-tests).

It counts what each rank's link has to carry, so it can be compared with the speed of a link or of
memory, whatever the number of ranks.
"""

from collections.abc import Callable

FACTORS: dict[str, Callable[[int], float]] = {  # by the number of ranks
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
}


def bus_bandwidth(collective: str, nbytes: int, ranks: int, seconds: float) -> float:
    """Bytes per second. `nbytes`: of the larger tensor, which has a part for each rank."""
    return nbytes / seconds * FACTORS[collective](ranks)
