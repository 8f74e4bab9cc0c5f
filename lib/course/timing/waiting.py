"""Ranks that go through a schedule together, of which one is late or dies: who waits for whom."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from minidist.schedule.schedule import Schedule, Send

FOREVER = math.inf


class Activity(NamedTuple):
    """What a rank does for a time: it sends and receives in a step, or waits in it for a peer."""

    step: int
    start: float
    end: float  #: maybe `FOREVER`
    awaits: int | None = None


def simulate(
    schedule: Schedule, starts: Sequence[float], seconds: float, dies: tuple[int, int] | None = None
) -> list[list[Activity]]:
    """What each rank does and when, in order.

    A message begins when both its ends have come to its step, as large messages do; a rank goes on
    to the next step when all its own messages of this one are over.

    Args:
        starts: when each rank calls the collective.
        seconds: what a message takes.
        dies: a rank, and the step before which it does.
    """
    at, done = [*starts], list[list[Activity]]([] for _ in starts)
    for number, step in enumerate(schedule):
        if dies and dies[1] == number:
            at[dies[0]] = FOREVER
        came = [*at]
        for rank in range(schedule.ranks):
            messages = sorted(_message(send, came, rank) for send in step if rank in send[:2])
            for begin, _, peer in messages:
                if begin > at[rank]:
                    done[rank].append(Activity(number, at[rank], begin, peer))
                if (end := begin + seconds) > at[rank] and begin < FOREVER:
                    done[rank].append(Activity(number, max(begin, at[rank]), end))
                at[rank] = max(at[rank], end)
    return done


def _message(send: Send, came: Sequence[float], rank: int) -> tuple[float, bool, int]:
    """When it begins, whether this rank sends it, and the rank at the other end."""
    sends = send.src == rank
    return max(came[send.src], came[send.dst]), sends, send.dst if sends else send.src
