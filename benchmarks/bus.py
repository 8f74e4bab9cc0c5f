"""Bus bandwidth, as nccl-tests define it (doc/PERFORMANCE.md).

It counts what each rank's link must carry, so that it can be held against a link's or a memory's
speed, whatever the number of ranks.
"""

from collections.abc import Callable

FACTORS: dict[str, Callable[[int], float]] = {  # by the number of ranks
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "all_gather_into_tensor": lambda n: (n - 1) / n,
}


def busbw(collective: str, nbytes: int, ranks: int, seconds: float) -> float:
    """Bytes a second. `nbytes`: of the whole tensor, with a part for each rank where it has."""
    return nbytes / seconds * FACTORS[collective](ranks)
