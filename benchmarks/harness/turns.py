"""Several ways to do one thing, timed in turns by all ranks of one process group.

As nccl-tests do it: a number of calls in a row, and the mean. A single call after a barrier mostly
measures how the barrier left the threads: on 2 cores such times jump by a scheduler's slice. Each
round takes the ways in random order; quartiles over the rounds are compared.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import minidist

TURN = 0.02  # seconds that one turn of a way should take, if 20 calls do not take longer
MOST_CALLS, MOST_ROUNDS, LEAST_ROUNDS = 20, 21, 3

Call = Callable[[], object]
Interval = tuple[float, float]  # seconds


class Repeats(NamedTuple):
    """`calls` in a row make a turn; each way has one turn in each of `rounds`."""

    calls: int
    rounds: int


class Turns(NamedTuple):
    """On one rank: way → the interval of each of its turns."""

    calls: int
    intervals: dict[str, list[Interval]]


def interval(call: Call, calls: int) -> Interval:
    """Start and end of some calls in a row, by the clock that all ranks of a host share.

    On a GPU by CUDA events, with the time that the stream waits for the host; it starts at 0.
    """
    if minidist.device().type == "cuda":
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        return 0.0, before.elapsed_time(after) / 1e3
    start = time.monotonic()
    for _ in range(calls):
        call()
    return start, time.monotonic()


def max_over_ranks(value: float) -> float:
    """The largest value of any rank, on every rank; no rank returns before all have called."""
    box = torch.tensor([value], dtype=torch.float64, device="cpu")  # over Gloo, in every setup
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.item()


def trial(ways: Mapping[str, Call], reset: Call = lambda: None) -> list[float]:
    """Seconds of one call of each way, by the slowest rank; the call before it connects."""
    found = []
    for way in ways.values():
        reset()
        interval(way, 1)
        start, end = interval(way, 1)
        found.append(max_over_ranks(end - start))
    return found


def repeats_within(seconds: float, trials: list[float]) -> Repeats:
    """As many calls and rounds as fit, if one call of each way takes `trials`; maybe no round."""
    calls = max(1, min(MOST_CALLS, int(TURN / max(trials))))
    rounds = int(seconds / (calls * sum(trials))) - 1  # one warms up
    return Repeats(calls, min(rounds, MOST_ROUNDS) if rounds >= LEAST_ROUNDS else 0)


def take_turns(ways: Mapping[str, Call], repeats: Repeats, reset: Call = lambda: None) -> Turns:
    """Call each way in each round, in random order; `reset` comes before each turn."""
    order = random.Random(0)  # the same on every rank
    names = list(ways)
    found: dict[str, list[Interval]] = {name: [] for name in ways}
    for round_number in range(1 + repeats.rounds if repeats.rounds else 0):
        order.shuffle(names)
        for name in names:
            reset()
            max_over_ranks(0)
            turn = interval(ways[name], repeats.calls)
            if round_number:  # the first warms up
                found[name].append(turn)
    return Turns(repeats.calls, found)


def in_order(calls: Mapping[str, Call], rounds: int) -> Turns:
    """Calls that belong together, such as a step's parts, one after the other in each round.

    On a GPU by events between them, so that the host runs ahead as it does in training.
    """
    mark = _event if minidist.device().type == "cuda" else time.monotonic
    marks: list[Any] = [mark()]
    for call in [*calls.values()] * rounds:
        call()
        marks.append(mark())
    if mark is _event:
        marks[-1].synchronize()
        marks = [marks[0].elapsed_time(each) / 1e3 for each in marks]
    found = [*pairwise(marks)]
    return Turns(1, {name: found[place :: len(calls)] for place, name in enumerate(calls)})


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def quartiles(of_ranks: list[Turns]) -> dict[str, list[float]]:
    """Way → seconds of a call, from the first rank's start to the last rank's end."""
    found = {}
    for way in of_ranks[0].intervals:
        turns = zip(*(rank.intervals[way] for rank in of_ranks), strict=True)
        times = [max(end for _, end in each) - min(start for start, _ in each) for each in turns]
        parts = statistics.quantiles(times, n=4, method="inclusive")
        found[way] = [seconds / of_ranks[0].calls for seconds in parts]
    return found


def digits(number: float) -> float:
    """For a record, with four digits."""
    return float(f"{number:.4g}")


def milliseconds(seconds: list[float]) -> list[float]:
    """For a record, with four digits."""
    return [digits(1e3 * each) for each in seconds]


def refusal(call: Call) -> str:
    """The error with which some rank's backend refuses a call; "" if none does."""
    error = ""
    try:
        call()
    except (RuntimeError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return (error or "on another rank") if max_over_ranks(bool(error)) else ""
