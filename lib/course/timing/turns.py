"""How long forward and backward take on several ranks, of several models that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

WARM_UP = 2  # rounds that do not count
EVERY = 3  # rounds between two lines of progress


class Times(NamedTuple):
    """Of one rank, in seconds of a clock that all ranks of a host share."""

    start: float
    computed: float  # forward and backward are over
    end: float  # and the gradients are averaged


class Step(NamedTuple):
    """Of all ranks together, in milliseconds."""

    took: float
    exposed: float  # what is left to do once the slowest rank has computed


def take_turns(
    models: Mapping[str, Any], compute: Callable[[Any], object], rounds: int
) -> dict[str, list[Times]]:
    """On a rank: time `compute(model)` and `model.synchronize()`, one model after the other.

    They take turns so that a busy moment of the machine hits all of them alike.
    """
    took: dict[str, list[Times]] = {name: [] for name in models}
    for turn in range(1 - WARM_UP, rounds + 1):
        for name, model in models.items():
            dist.barrier()
            start = time.monotonic()
            compute(model)
            computed = time.monotonic()
            model.synchronize()
            times = Times(start, computed, time.monotonic())
            if turn > 0:
                took[name].append(times)
            model.module.zero_grad()
        if dist.get_rank() == 0 and turn > 0 and turn % EVERY == 0:
            print(f"round {turn} of {rounds}", flush=True)
    return took


def best(of_ranks: Sequence[Mapping[str, Sequence[Times]]]) -> dict[str, Step]:
    """The fastest round of each model: what slows one down is other work on the machine."""
    return {
        name: min(map(_step, zip(*(took[name] for took in of_ranks), strict=True)))
        for name in of_ranks[0]
    }


def _step(ranks: Sequence[Times]) -> Step:
    start, computed, end = zip(*ranks, strict=True)
    return Step(1e3 * (max(end) - min(start)), 1e3 * (max(end) - max(computed)))
