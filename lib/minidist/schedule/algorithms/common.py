"""What several algorithms are made of: places from a root, pipelines, folding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minidist.schedule.checks import whole_number
from minidist.schedule.schedule import Ints, Step


def numbered_from(root: int, ranks: int) -> Ints:
    """The ranks in ring order from `root` on, so that place 0 is the root's."""
    return (root + np.arange(ranks)) % ranks


def powers_of_two(below: int) -> list[int]:
    """1, 2, 4, ... as long as they are smaller than `below`; ceil(log2(below)) of them."""
    return [2**level for level in range((below - 1).bit_length())]


def pipelined(edges: Step, start: Ints, segments: int, period: int = 1) -> Iterator[Step]:
    """Send `segments` chunks along every edge, one behind the other.

    An edge sends its first chunk in step `start`, and the one after it every `period` steps.
    """
    for t in range(int(start.max(initial=-1)) + period * (segments - 1) + 1):
        number, waits = np.divmod(t - start, period)
        live = np.flatnonzero((waits == 0) & (number >= 0) & (number < segments))
        if len(live):
            chunk = edges.chunk[live] + number[live]
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
        power = 1 << (whole_number("ranks", ranks, 1).bit_length() - 1)
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
