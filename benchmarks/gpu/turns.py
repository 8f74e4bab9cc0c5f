"""Times on one rank and over all, by CUDA events; by the clock where there is no GPU."""

import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

TURN = 0.02  # seconds that one turn of a way should take, if 20 calls do not take longer
MOST_CALLS, MOST_ROUNDS, LEAST_ROUNDS = 20, 21, 3

Call = Callable[[], object]


def seconds(call: Call, times: int, device: torch.device) -> float:
    """Seconds a call, of so many in a row; with what the stream waits for the host."""
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(times):
        call()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / times


def largest(value: float) -> float:
    """The largest value of all ranks, on each of them; nobody is back before all have come."""
    box = torch.tensor([value], dtype=torch.float64)  # on the CPU, by Gloo, in every world
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.item()


def plan(trials: list[float], budget: float) -> tuple[int, int]:
    """Calls in a turn, and rounds, in `budget` seconds; 0 rounds if too few would fit.

    Args:
        trials: seconds that one call of each way took.
    """
    calls = max(1, min(MOST_CALLS, int(TURN / max(trials))))
    rounds = int(budget / (calls * sum(trials)))
    return calls, min(rounds, MOST_ROUNDS) if rounds >= LEAST_ROUNDS else 0


def race(
    ways: dict[str, Call], budget: float, reset: Call, device: torch.device
) -> tuple[dict[str, list[float]], int]:
    """Ways to do one thing, in turns, in random order: way → seconds a call, for each round.

    A round's time is that of its slowest rank. No times if there were too few rounds in `budget`
    seconds. With it, how many calls a turn had.
    """
    trials = []
    for way in ways.values():
        reset()
        seconds(way, 1, device)  # connects, allocates
        trials.append(largest(seconds(way, 1, device)))
    calls, rounds = plan(trials, budget)
    order = random.Random(0)  # the same on every rank
    names = list(ways)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            reset()
            largest(0)
            seen[name].append(largest(seconds(ways[name], calls, device)))
    return (seen if rounds else {}), calls


def quartiles(times: list[float]) -> list[float]:
    """In microseconds."""
    return [round(1e6 * t, 1) for t in statistics.quantiles(times, n=4, method="inclusive")]


class Shared:
    """A clock on which all ranks agree, so that they leave out the same things."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the end, by the rank that has least."""
        return -largest(time.monotonic() - self._end)


def refusal(call: Call) -> str:
    """What a call says that some rank's backend does not take; "" if all take it."""
    told = ""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
    return (told or "on another rank") if largest(bool(told)) else ""
