"""Ranks that go through a schedule together, of which one is late or dies: who waits for whom."""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from minidist.schedule.lanes import Work, spans
from minidist.schedule.schedule import Schedule

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
    works = [Work(f"rank {rank}", "compute", start, []) for rank, start in enumerate(starts)]
    last = [*range(schedule.ranks)]  # the places of what each rank does before the step
    turns = list[tuple[int, int, list[int], list[int]]]()
    for number, step in enumerate(schedule):
        if dies and dies[1] == number:
            last[dies[0]] = len(works)
            works.append(Work(f"rank {dies[0]}", "dead", FOREVER, []))
        came = [*last]
        for rank in range(schedule.ranks):
            sent = [(True, send.dst) for send in step if send.src == rank]
            received = [(False, send.src) for send in step if send.dst == rank]
            if peers := [peer for _, peer in sorted(sent + received)]:
                turns.append((number, rank, peers, came))
                last[rank] = len(works)
                after = [came[peer] for peer in peers]
                works.append(Work(f"rank {rank}", "messages", seconds, after))
    ends, done = [span.end for span in spans(works)], list[list[Activity]]([] for _ in starts)
    for number, rank, peers, came in turns:
        at = ends[came[rank]]
        begins = [(max(at, ends[came[peer]]), peer) for peer in peers]
        for begin, peer in sorted(begins, key=itemgetter(0)):
            if begin > at:
                done[rank].append(Activity(number, at, begin, peer))
            if (end := begin + seconds) > at and begin < FOREVER:
                done[rank].append(Activity(number, max(begin, at), end))
            at = max(at, end)
    return done
