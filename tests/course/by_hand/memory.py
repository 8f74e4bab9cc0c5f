"""Answers to the exercises on memory as learners write them: right, and wrong as is typical."""

import math
from typing import Any

from minidist.memory.state import state


def of_a_block(
    *, each: int = 4, wide: float = 16, norms: int = 2, attention: bool = True, pairs: bool = False
) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_activations(batch: int, time: int, width: int, heads: int) -> float:
        numbers = wide * width + 2 * norms + heads * attention + heads * time * pairs
        return each * batch * time * numbers

    return my_activations


def at_each_birth(lives: Any) -> int:
    return max([sum(n for a, b, n in lives if a <= t < b) for t, *_ in lives], default=0)


def by_a_sweep(lives: Any) -> int:
    """Another right way: freed before born at the same time."""
    events = sorted([(a, 1, n) for a, _, n in lives] + [(b, 0, -n) for _, b, n in lives])
    held = most = 0
    for *_, change in events:
        held += change
        most = max(most, held)
    return most


def born_before_freed(lives: Any) -> int:
    return max([sum(n for a, b, n in lives if a <= t <= b) for t, *_ in lives], default=0)


def with_checkpoints(*, shared: bool = True, shortest: bool = True, inside: bool = True) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_checkpointed(layers: int, every: int, kept: int, passed: int) -> int:
        most = 0
        for number in range(math.ceil(layers / every)):
            blocks = min(every, layers - number * every) if shortest else every
            again = blocks * kept if inside else kept
            most = max(most, number * passed + again + (0 if shared else passed))
        return most

    return my_checkpointed


def as_if_all_segments_were_full(layers: int, every: int, kept: int, passed: int) -> int:
    return math.ceil(layers / every) * passed + min(every, layers) * kept - passed


def ranks_for(*, up: bool = True, beside_too: bool = True, spare: int = 0) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_fewest(parameters: int, limit: int, beside: int, policy: Any, optimizer: str) -> Any:
        room = limit - beside if beside_too else limit
        if room <= 0:
            return None
        ranks = state(parameters, policy, optimizer).total / room
        return max(1, math.ceil(ranks) if up else math.floor(ranks)) + spare

    return my_fewest
