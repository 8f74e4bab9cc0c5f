"""Price a schedule: how long it takes on links of known latency and bandwidth.

The model is Hockney's (1994): a message of m bytes takes alpha + beta * m seconds on each link that
it crosses. Messages of one step that share a link take turns for their bytes, while their latencies
overlap; links work side by side; a step ends when its busiest link is done, and the next one starts
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minidist.schedule import Ints, Schedule, Step

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Link:
    """`alpha`: seconds that a message of any size takes. `beta`: seconds per byte, 1/bandwidth."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Topology:
    """Which links a message crosses.

    Attributes:
        name: for captions.
        lanes: given the arrays `src` and `dst` of a step, yields (link, number): the messages with
            the same number share one copy of that link; -1 marks those that do not use it.
        turns: messages that share a link take turns for their alpha too: it is work, not waiting.
    """

    name: str
    lanes: Callable[[Ints, Ints], Iterator[tuple[Link, Ints]]]
    turns: bool = False


def switch(link: Link) -> Topology:
    """Every rank has one link out and one link in; the switch between them is never the limit."""

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        yield link, src
        yield link, dst

    return Topology("switch", lanes)


def shared(link: Link) -> Topology:
    """All messages share one link: ranks of one host, whose few cores do all of their work."""

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        yield link, np.zeros_like(src)

    return Topology("shared", lanes, turns=True)


def nodes(local: int, inside: Link, between: Link) -> Topology:
    """Nodes of `local` ranks: each rank has its own links inside, each node one out and one in."""

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        same = src // local == dst // local
        for end in (src, dst):
            yield inside, np.where(same, end, -1)
            yield between, np.where(same, -1, end // local)

    return Topology(f"nodes of {local}", lanes)


def seconds(schedule: Schedule, nbytes: float, topology: Topology) -> float:
    """Predicted time of `schedule` on a tensor of `nbytes` bytes."""
    return sum(
        max(
            float((link.alpha * m + link.beta * b).max())
            for link, m, b in _loads(step, size, topology)
        )
        for step, size in _sized(schedule, nbytes)
    )


@dataclass(frozen=True)
class Measurement:
    """`seconds` that `schedule` took on a tensor of `nbytes` bytes."""

    schedule: Schedule
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """The fitted `link`, and the relative error (predicted / measured - 1) of each measurement."""

    link: Link
    errors: tuple[float, ...]


def fit(measured: Sequence[Measurement], topology: Callable[[Link], Topology]) -> Fit:
    """Find the alpha and beta that best explain the measurements, on a topology of one link.

    Least squares on the *relative* error, so that microseconds count as much as seconds; neither
    figure is allowed below zero.

    Args:
        measured: times of one machine, over several sizes.
        topology: `switch` or `shared`.

    Raises:
        ValueError: fewer than two measurements, or none that tells alpha from beta.
    """
    times = np.array([m.seconds for m in measured])
    if len(measured) < 2 or (times <= 0).any():
        raise ValueError("fit: needs two measurements or more, each longer than zero seconds")
    unit = topology(Link(1.0, 1.0))
    work = np.array([_busiest(m.schedule, m.nbytes, unit) for m in measured])
    design = work / times[:, None]
    if np.linalg.matrix_rank(design) < 2:
        raise ValueError("fit: to tell alpha from beta the bytes in a message must differ")
    alpha, beta = _non_negative(design)
    link = Link(alpha, beta)
    return Fit(link, tuple(float(e) for e in design @ (alpha, beta) - 1))


def _sized(schedule: Schedule, nbytes: float) -> Iterator[tuple[Step, Floats]]:
    for step in schedule:
        if len(step):
            yield step, step.width * (nbytes / schedule.chunks)


def _loads(step: Step, size: Floats, topology: Topology) -> Iterator[tuple[Link, Floats, Floats]]:
    """For each kind of link: latencies to be waited for and bytes, on every copy of it."""
    for link, number in topology.lanes(step.src, step.dst):
        used = number >= 0
        if used.any():
            messages = np.bincount(number[used])
            latencies = messages if topology.turns else np.minimum(messages, 1)
            yield link, latencies, np.bincount(number[used], weights=size[used])


def _busiest(schedule: Schedule, nbytes: float, topology: Topology) -> tuple[float, float]:
    """Latencies and bytes on the busiest link of each step, summed over the steps."""
    messages = total = 0.0
    for step, size in _sized(schedule, nbytes):
        loads = list(_loads(step, size, topology))
        messages += max(float(m.max()) for _, m, _ in loads)
        total += max(float(b.max()) for _, _, b in loads)
    return messages, total


def _non_negative(design: Floats) -> tuple[float, float]:
    """Least squares for design @ (alpha, beta) = 1; a figure that comes out negative is zero."""
    ones = np.ones(len(design))
    alpha, beta = np.linalg.lstsq(design, ones, rcond=None)[0]
    if alpha < 0 or beta < 0:
        keep = int(beta > 0)
        alone = float(np.linalg.lstsq(design[:, [keep]], ones, rcond=None)[0][0])
        return (0.0, alone) if keep else (alone, 0.0)
    return float(alpha), float(beta)
