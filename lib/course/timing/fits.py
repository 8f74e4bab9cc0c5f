"""Lines α + βn for a measured curve: one through its ends, a fitted one, or two."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Rows = Sequence[Sequence[float]]  # a curve: bytes, microseconds


class Line(NamedTuple):
    """Microseconds = start + slope * bytes."""

    start: float
    slope: float

    def __call__(self, size: float) -> float:
        return self.start + self.slope * size


class TwoLines(NamedTuple):
    """One line below a size and another from there on."""

    low: Line
    high: Line
    at: float

    def __call__(self, size: float) -> float:
        return (self.low if size < self.at else self.high)(size)


def through_ends(rows: Rows) -> Line:
    """By hand: the smallest size gives the start, the largest one the slope."""
    (_, start), (size, longest) = rows[0], rows[-1]
    return Line(start, (longest - start) / size)


def fitted(rows: Rows) -> Line:
    """The line with the least sum of squared relative errors."""
    size, took = np.array(rows, dtype=float).T
    slope, start = np.polyfit(size, took, 1, w=1 / took)
    return Line(float(start), float(slope))


def two_lines(rows: Rows) -> TwoLines:
    """Two fitted lines of at least three points, split where both together err the least."""
    splits = range(3, len(rows) - 2)
    choices = [TwoLines(fitted(rows[:i]), fitted(rows[i:]), rows[i][0]) for i in splits]
    return min(choices, key=lambda both: sum(error**2 for error in errors(both, rows)))


def at_size(rows: Rows, size: float) -> float:
    """Microseconds of a measured curve at a size between two of its points."""
    sizes, took = np.log(np.array(rows, dtype=float)).T
    return float(np.exp(np.interp(np.log(size), sizes, took)))


def errors(model: Line | TwoLines, rows: Rows) -> list[float]:
    """Relative error at each point: (predicted - measured) / measured."""
    return [model(size) / took - 1 for size, took in rows]


def bus_bandwidth(size: float, microseconds: float, ranks: int) -> float:
    """GB/s that each link would carry in a ring: 2 (N - 1) / N times the bytes, over the time."""
    return 2 * (ranks - 1) / ranks * size / microseconds / 1e3
