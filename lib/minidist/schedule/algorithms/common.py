"""What several algorithms are made of: places from a root, pipelines, folding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minidist.errors import ScheduleError
from minidist.schedule.checks import at_least_one, whole_number
from minidist.schedule.schedule import Ints, Step


def numbered_from(root: int, ranks: int) -> Ints:
    """The ranks in ring order from `root` on, so that place 0 is the root's."""
    if not 0 <= whole_number("root", root) < at_least_one("ranks", ranks):
        raise ScheduleError(f"root must be in 0..{ranks - 1}, got {root}")
    return (root + np.arange(ranks)) % ranks


def powers_of_two(below: int) -> list[int]:
    """1, 2, 4, ... as long as they are smaller than `below`; ceil(log2(below)) of them."""
    return [2**level for level in range((below - 1).bit_length())]


def pipelined(edges: Step, start: Ints, segments: int, period: int = 1) -> Iterator[Step]:
    """Send `segments` chunks along every edge, one behind the other.

    An edge sends its first chunk in step `start`, and the one after it every `period` steps.
    """
    last = int(start.max(initial=-1)) + period * (segments - 1)
    order = np.argsort(start, kind="stable")
    times = start[order]
    for t in range(last + 1 if len(edges) else 0):
        # Only edges that have begun and are not through: a long chain has few of them.
        low, high = np.searchsorted(times, [t - period * (segments - 1), t + 1])
        live = order[low:high]
        live = live[(t - start[live]) % period == 0]
        if len(live):
            chunk = edges.chunk[live] + (t - start[live]) // period
            yield Step.of(edges.src[live], edges.dst[live], chunk, edges.reduce[live])


class Fold(NamedTuple):
    """How any number of ranks is folded into a power of two (Thakur et al., 2005).

    Of the first ranks every second one, `out`, hands what it has to the next, `into`, and gets the
    result from there in the end. The others, and `into`, are `members`: P = 2^k of them.
    """

    out: Ints
    into: Ints
    members: Ints

    @classmethod
    def of(cls, ranks: int) -> Fold:
        """Fold `ranks`: the N - P too many go out."""
        power = 1 << (at_least_one("ranks", ranks).bit_length() - 1)
        out, place = 2 * np.arange(ranks - power), np.arange(power)
        return cls(out, out + 1, place + np.minimum(place + 1, ranks - power))

    def enter(self, chunk: Any, reduce: bool, width: Any = 1) -> Iterator[Step]:
        """The first step, if any rank is too many."""
        if len(self.out):
            yield Step.of(self.out, self.into, chunk, reduce, width)

    def leave(self, chunk: Any, width: Any = 1) -> Iterator[Step]:
        """The last step, if any rank is too many."""
        if len(self.out):
            yield Step.of(self.into, self.out, chunk, False, width)
