"""The ring against the backend's own all-reduce, in turns, in one process group after another.

Where the ranks of a launch are placed moves all its times, by a tenth or more. So there are several
launches: the ratio is taken within each, and the median of these ratios is recorded.

And a thread that waits for a core waits for a slice of the scheduler, some 3 ms: on 2 cores in
about every second call, ours and the backend's alike. At 1 MiB, which takes 1 ms, the ratio of
single calls is therefore anything from 0.4 to 3.7. So calls are timed ten in a row.
"""

import statistics
from collections.abc import Iterator

import torch
import torch.distributed as dist

import minidist
from benchmarks.cases.collectives import calls_in_a_row
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.turns import Repeats, Turns, digits, milliseconds, quartiles, take_turns

LAUNCHES = 5


def on_rank(sizes: tuple[int, ...], rounds: int) -> list[Turns]:
    """The turns of each size."""
    return [_turns(size, rounds) for size in sizes]


def _turns(size: int, rounds: int) -> Turns:
    tensor = torch.ones(size // 4, device=minidist.device())
    ways = {
        "ring": lambda: minidist.all_reduce(tensor, algorithm="ring", check=False),
        "native": lambda: dist.all_reduce(tensor),
    }
    return take_turns(ways, Repeats(calls_in_a_row(size), rounds), lambda: tensor.fill_(1))


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each size; times are the medians of each launch."""
    sizes, rounds = scope.message_bytes, scope.rounds or 15
    launches = [setup.launch(on_rank, sizes, rounds, timeout=clock.left()) for _ in range(LAUNCHES)]
    for at, size in enumerate(sizes):
        seconds = [quartiles([rank[at] for rank in of_ranks]) for of_ranks in launches]
        medians = {way: [each[way][1] for each in seconds] for way in ("ring", "native")}
        ratios = [a / b for a, b in zip(medians["ring"], medians["native"], strict=True)]
        times = {f"{way}_ms": milliseconds(each) for way, each in medians.items()}
        ratio = digits(statistics.median(ratios))
        repeats = {"rounds": rounds, "calls": calls_in_a_row(size)}
        yield {"bytes": size, **times, "ratio": ratio, **repeats}
