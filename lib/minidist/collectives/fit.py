"""Pricing the other way round: from measured times to the latency and bandwidth of a link."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minidist.errors import checked
from minidist.schedule.cost import Link, Topology, seconds
from minidist.schedule.schedule import Schedule

Floats = npt.NDArray[np.float64]


class Measurement(NamedTuple):
    """`seconds` that `schedule` took on a tensor of `nbytes` bytes."""

    schedule: Schedule
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class AlphaBeta:
    """The figures that `fit` found, and its relative error on each measurement."""

    link: Link
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Half of the measurements are predicted at least this well."""
        return median(map(abs, self.errors))

    @property
    def worst_error(self) -> float:
        """The largest error, without its sign."""
        return max(map(abs, self.errors))


@checked
def fit(measured: Sequence[Measurement], topology: Callable[[Link], Topology]) -> AlphaBeta:
    """Find the alpha and beta that best explain the measurements.

    Least squares on the *relative* error, so that microseconds count as much as seconds; neither is
    allowed below zero.

    Args:
        measured: times of one machine, over several sizes; of one algorithm or of several.
        topology: `switch` or `shared`: a topology of one link.

    Raises ValueError if a time is not above zero, or the measurements are too few or too alike.
    """
    if not all(each.seconds > 0 for each in measured):
        raise ValueError("fit: each measurement must be longer than zero seconds")
    # What each figure counts for: the time if it alone were 1, relative to the measured one.
    units = topology(Link(1.0, 0.0)), topology(Link(0.0, 1.0))
    design = np.array(
        [[seconds(m.schedule, m.nbytes, unit) / m.seconds for unit in units] for m in measured]
    )
    length = np.linalg.norm(design, axis=0)
    if not length.all() or np.linalg.matrix_rank(design / length) < len(length):
        raise ValueError(
            f"fit: {len(measured)} measurements cannot tell the figures apart: they must differ "
            "in the bytes of a message"
        )
    best = _non_negative(design)
    return AlphaBeta(Link(*best.tolist()), tuple((design @ best - 1).tolist()))


def _non_negative(design: Floats) -> Floats:
    """Least squares for design @ x = 1 with no x below zero.

    The best x is the plain least-squares solution for some of the columns, the others being zero.
    With two columns one can try them all.
    """
    ones = np.ones(len(design))
    kept = map(np.array, product((0, 1), repeat=design.shape[1]))
    tried = [np.linalg.lstsq(design * keep, ones, rcond=None)[0] * keep for keep in kept]
    allowed = [x for x in tried if (x >= 0).all()]
    return min(allowed, key=lambda x: float(np.linalg.norm(design @ x - 1)))
