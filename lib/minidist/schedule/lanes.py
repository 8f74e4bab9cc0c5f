"""Work on lanes: a GPU computes, a link carries, a rank runs its stages, one thing at a time.

A training step is data, as a collective is: a list of `Work`. A lane does its work in the order of
the list, each piece as soon as the lane is free and all that it comes `after` has ended. `spans`
replays the list and says when each piece runs, or that it never does; `waits`, who then waits for
whom. Buckets, units, pipelines, stragglers and the capstone's clock are such lists. Times are in
any unit, the same for all.

Imports nothing but arithmetic, so that it also runs in a page of the book.
"""

from __future__ import annotations

import math


class Work:
    """A piece of work.

    Attributes:
        lane: what does it, such as "compute", "network" or "rank 3".
        kind: what it is, such as "forward".
        takes: its duration; `math.inf` for what never ends.
        after: places in the list of the works that have to end before it starts. They may stand
            later in the list, on other lanes.
        text: what a picture writes on it.
        hop: time that passes between the end of the last of those and the earliest start.
    """

    def __init__(
        self,
        lane: str,
        kind: str,
        takes: float,
        after: list[int],
        text: str = "",
        hop: float = 0.0,
    ) -> None:
        self.lane, self.kind, self.takes, self.after = lane, kind, takes, after
        self.text, self.hop = text, hop


class Span:
    """A piece of work in time: from `start` to `end`, both `math.inf` if it never starts."""

    def __init__(self, lane: str, kind: str, text: str, start: float, end: float) -> None:
        self.lane, self.kind, self.text, self.start, self.end = lane, kind, text, start, end


class Lanes:
    """Lanes that are given work while time passes; each starts a piece when it is free."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.ends: dict[str, float] = {}

    def free(self, lane: str) -> float:
        """The time at which the last work of a lane ends."""
        return self.ends.get(lane, 0.0)

    def do(self, lane: str, kind: str, after: float, takes: float, text: str = "") -> float:
        """Put a piece of work on a lane, to start no earlier than `after`; return its end."""
        start = max(self.free(lane), after)
        self.ends[lane] = start + takes
        self.spans.append(Span(lane, kind, text, start, start + takes))
        return start + takes


def spans(works: list[Work]) -> list[Span]:
    """The time of each piece of work, in the order of the list."""
    found = [Span(each.lane, each.kind, each.text, math.inf, math.inf) for each in works]
    queues: dict[str, list[int]] = {}
    for place, work in enumerate(works):
        if work.lane not in queues:
            queues[work.lane] = []
        queues[work.lane].append(place)
    lanes, ran, before = Lanes(), [False for _ in works], -1
    while len(lanes.spans) > before:
        before = len(lanes.spans)
        for lane in queues:
            left = queues[lane]
            while len(left) > 0:
                work = works[left[0]]
                if len([other for other in work.after if not ran[other]]) > 0:
                    break
                place = left.pop(0)
                ready = work.hop
                for needed in work.after:
                    ready = max(ready, found[needed].end + work.hop)
                lanes.do(lane, work.kind, ready, work.takes, work.text)
                found[place] = lanes.spans[-1]
                ran[place] = True
    return found


def end(found: list[Span]) -> float:
    """The end of the last work; 0 if there is none, `math.inf` if some never ends."""
    latest = 0.0
    for span in found:
        latest = max(latest, span.end)
    return latest


def busy(found: list[Span], lane: str) -> float:
    """Time in which a lane works."""
    return sum([span.end - span.start for span in found if span.lane == lane])


def waits(works: list[Work], found: list[Span]) -> list[tuple[int, int]]:
    """Places, for each lane that cannot go on, of its next work and of one that it waits for."""
    stuck: list[tuple[int, int]] = []
    seen: list[str] = []
    for place, work in enumerate(works):
        if found[place].start == math.inf and work.lane not in seen:
            seen.append(work.lane)
            missing = [other for other in work.after if found[other].end == math.inf]
            if len(missing) > 0:
                stuck.append((place, missing[0]))
    return stuck
