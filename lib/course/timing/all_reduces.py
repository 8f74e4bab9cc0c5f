"""A stopwatch for all-reduces on the ranks of one machine."""

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import torch
import torch.distributed as dist

import minidist

Span = tuple[str, int, float, float]  # algorithm, bytes, start, end


def all_reduces(
    algorithms: Sequence[str], sizes: Sequence[int], ranks: int = 4, runs: int = 7
) -> dict[tuple[str, int], float]:
    """Time `minidist.all_reduce`: (algorithm, bytes) → seconds, the median of `runs`.

    A run lasts from the first rank's start to the last rank's end. The algorithms take turns, so
    that a slow moment hits all of them, and the first run of each warms up and does not count.

    Args:
        algorithms: names that `algorithm=` accepts.
        sizes: bytes of the tensors, of 4 bytes an element.
        ranks: number of ranks.
        runs: number of runs that count.
    """
    took = defaultdict(list)
    for run in zip(*minidist.launch(_spans, ranks, algorithms, sizes, runs), strict=True):
        name, size, *_ = run[0]
        first, last = min(start for *_, start, _ in run), max(end for *_, end in run)
        took[name, size].append(last - first)
    return {key: median(times[1:]) for key, times in took.items()}


def _spans(algorithms: Sequence[str], sizes: Sequence[int], runs: int) -> list[Span]:
    """Every run on this rank; `time.monotonic` is one clock for all processes of a machine."""
    spans = []
    for size in sizes:
        tensor = torch.ones(size // 4)
        for _ in range(1 + runs):
            for name in algorithms:
                dist.barrier()
                start = time.monotonic()
                minidist.all_reduce(tensor, algorithm=name, check=False)
                spans.append((name, size, start, time.monotonic()))
        if dist.get_rank() == 0:
            print(f"{size // 1024:,} KiB: {runs} runs of {', '.join(algorithms)}")
    return spans
