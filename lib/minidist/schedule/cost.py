"""Price a schedule: how long it takes on links of known latency and bandwidth.

The model is Hockney's (1994): a message of m bytes takes alpha + beta * m seconds on each link that
it crosses. Messages of one step that share a link take turns for their bytes, while their latencies
overlap; links work side by side; a step ends when its busiest link is done and its busiest receiver
has reduced what came, at gamma seconds per byte (Thakur, Rabenseifner and Gropp, 2005); the next
one starts then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minidist.schedule.checks import amount
from minidist.schedule.schedule import Ints, Schedule, Step
from minidist.schedule.topology import Link, Topology, nodes, shared, switch

__all__ = [
    "AlphaBeta",
    "Link",
    "Load",
    "Measurement",
    "Price",
    "Topology",
    "fit",
    "nodes",
    "price",
    "seconds",
    "shared",
    "switch",
]

Floats = npt.NDArray[Any]


class Load(NamedTuple):
    """What one step asks of a topology."""

    links: tuple[tuple[Link, int, int], ...]  # latencies waited for, chunks on the busiest copy
    reduced: int  # chunks that the busiest receiver reduces


@dataclass(frozen=True)
class Price:
    """A schedule on a topology: call it with a number of bytes for the seconds.

    `loads` counts how many steps ask the same; `chunks` is the number of slices of the tensor.
    """

    loads: dict[Load, int]
    chunks: int
    gamma: float

    def __call__(self, nbytes: float) -> float:
        """Seconds for a tensor of `nbytes` bytes."""
        chunk = amount("nbytes", nbytes) / self.chunks
        return sum(
            times
            * (
                max(link.alpha * m + link.beta * c * chunk for link, m, c in load.links)
                + self.gamma * load.reduced * chunk
            )
            for load, times in self.loads.items()
        )


def price(schedule: Schedule, topology: Topology) -> Price:
    """Walk through the schedule once; what it returns answers for any size.

    All chunks count as equally large: rounding to whole elements is left out.
    """
    loads: Counter[Load] = Counter()
    for step, times in schedule.outline():
        if len(step):
            loads[_load(step, topology)] += times
    return Price(dict(loads), schedule.chunks, topology.gamma)


def seconds(schedule: Schedule, nbytes: float, topology: Topology) -> float:
    """Predicted time of `schedule` on a tensor of `nbytes` bytes."""
    return price(schedule, topology)(nbytes)


@dataclass(frozen=True)
class Measurement:
    """`seconds` that `schedule` took on a tensor of `nbytes` bytes."""

    schedule: Schedule
    nbytes: int
    seconds: float

    def __post_init__(self) -> None:
        amount("nbytes", self.nbytes)
        amount("seconds", self.seconds)


@dataclass(frozen=True)
class AlphaBeta:
    """The figures that `fit` found, and its relative error on each measurement."""

    link: Link
    errors: tuple[float, ...]
    gamma: float = 0.0

    @property
    def median_error(self) -> float:
        """Half of the measurements are predicted at least this well."""
        return median(map(abs, self.errors))

    @property
    def worst_error(self) -> float:
        """The largest of the errors, without its sign."""
        return max(map(abs, self.errors))


def fit(
    measured: Sequence[Measurement],
    topology: Callable[[Link, float], Topology],
    *,
    gamma: bool = False,
) -> AlphaBeta:
    """Find the alpha and beta, and with `gamma` the gamma, that best explain the measurements.

    Least squares on the *relative* error, so that microseconds count as much as seconds; no figure
    is allowed below zero.

    Args:
        measured: times of one machine, over several sizes; of one algorithm or of several.
        topology: `switch` or `shared`: a topology of one link.
        gamma: find out what reducing costs, too.
    """
    names = ("alpha", "beta", "gamma")[: 2 + gamma]
    times = np.array([m.seconds for m in measured])
    if len(measured) < len(names) or not (times > 0).all():
        need = f"{('two', 'three')[gamma]} measurements or more"
        raise ValueError(f"fit: needs {need}, each longer than zero seconds")
    unit = topology(Link(1.0, 1.0), 1.0)
    work = np.array([_totals(price(m.schedule, unit), m.nbytes) for m in measured])
    design = work[:, : len(names)] / times[:, None]
    if not _identifiable(design[:, :2]):
        raise ValueError("fit: to tell alpha from beta the bytes in a message must differ")
    if not _identifiable(design):
        raise ValueError(
            "fit: to tell gamma from beta the algorithms must differ in the share of their bytes "
            "that is reduced: ring and tree reduce half, recursive doubling all"
        )
    found = _non_negative(design)
    errors = tuple(float(error) for error in design @ found - 1)
    return AlphaBeta(Link(*found[:2]), errors, *found[2:])


def _load(step: Step, topology: Topology) -> Load:
    busiest = []
    for link, number in topology.lanes(step.src, step.dst):
        used = number >= 0
        if used.any():
            latencies = int(np.bincount(number[used]).max()) if topology.cores else 1
            busiest.append((link, latencies, _most(number[used], step.width[used])))
    reduces = step.reduce
    cores, receiver = topology.cores, step.dst[reduces]
    worker = np.arange(len(receiver)) % cores if cores else receiver
    reduced = _most(worker, step.width[reduces]) if reduces.any() else 0
    return Load(tuple(busiest), reduced)


def _most(number: Ints, chunks: Ints) -> int:
    """The largest sum of chunks with the same number."""
    return int(np.bincount(number, weights=chunks).max())


def _totals(price: Price, nbytes: float) -> list[float]:
    """Latencies, bytes and reduced bytes, added up over the steps, each at its busiest place."""
    chunk = nbytes / price.chunks
    rows = [
        (
            times * max(m for _, m, _ in load.links),
            times * max(c for _, _, c in load.links) * chunk,
            times * load.reduced * chunk,
        )
        for load, times in price.loads.items()
    ]
    return [float(sum(column)) for column in zip(*rows, strict=True)] or [0.0, 0.0, 0.0]


def _identifiable(design: Floats) -> bool:
    """Whether the columns, which are the figures, differ in more than a factor."""
    length = np.linalg.norm(design, axis=0)
    return bool(length.all() and np.linalg.matrix_rank(design / length) == design.shape[1])


def _non_negative(design: Floats) -> list[float]:
    """Least squares for design @ x = 1 with no x below zero.

    The best x is the plain least-squares solution for some of the columns, the others being zero.
    With two or three columns one can try them all.
    """
    ones, columns = np.ones(len(design)), range(design.shape[1])
    best, least = [0.0 for _ in columns], float(len(ones))
    for some in (list(c) for size in columns for c in combinations(columns, size + 1)):
        x = np.zeros(len(columns))
        x[some] = np.linalg.lstsq(design[:, some], ones, rcond=None)[0]
        error = float(((design @ x - 1) ** 2).sum())
        if (x >= 0).all() and error < least:
            best, least = [float(value) for value in x], error
    return best
