"""Several ways to do one thing, measured in turns by all ranks of one process group.

As nccl-tests do it: a number of calls in a row, and the mean. A call alone, after a barrier, mostly
measures where the barrier has left the threads: on 2 cores such times jump by a scheduler's slice.
Each round takes the ways in random order; quartiles over the rounds are compared.
"""

import random
import statistics
import time
from collections.abc import Callable

import torch.distributed as dist

Span = tuple[float, float]


def calls(nbytes: int) -> int:
    """How many calls to make in a row for a message of `nbytes`."""
    return 10 if nbytes <= 4 << 20 else 4


def rounds(nbytes: int) -> int:
    """How often each way has its turn."""
    return max(15, min(25, (1 << 27) // nbytes))


def spans(
    ways: dict[str, Callable[[], object]],
    calls: int,
    rounds: int,
    reset: Callable[[], object] = lambda: None,
) -> dict[str, list[Span]]:
    """On each rank: way → when each of its turns of `calls` started and ended, round by round."""
    order = random.Random(0)  # the same on every rank
    names = list(ways)
    seen: dict[str, list[Span]] = {name: [] for name in ways}
    for round_number in range(1 + rounds):
        order.shuffle(names)
        for name in names:
            reset()
            dist.barrier()
            start = time.monotonic()
            for _ in range(calls):
                ways[name]()
            if round_number:  # the first warms up
                seen[name].append((start, time.monotonic()))
    return seen


def quartiles(of_ranks: list[list[Span]], calls: int) -> list[float]:
    """Seconds a call, from the first rank's start to the last one's end; one clock for all."""
    turns = zip(*of_ranks, strict=True)
    times = [max(end for _, end in each) - min(start for start, _ in each) for each in turns]
    return [t / calls for t in statistics.quantiles(times, n=4, method="inclusive")]
