"""From measured times to a link: the fit finds the figures that made them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minidist.collectives.fit import Measurement, fit
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, seconds, shared, switch
from minidist.schedule.schedule import Schedule

LINK = Link(alpha=1e-5, beta=1e-9)
WITH_REDUCING = LINK.beta + 4e-10 / 2  # seconds per byte, where half of what is moved is reduced
HALF = (algorithms.ring_all_reduce, algorithms.tree_all_reduce)  # reduce half of what they move
ALL = algorithms.recursive_doubling_all_reduce


def measured(topology: Any, *makes: Callable[[int], Schedule]) -> list[Measurement]:
    """Times that the model itself has made, with a gamma of 4e-10."""
    network = topology(LINK, 4e-10)
    return [
        Measurement(schedule, size, seconds(schedule, size, network))
        for make in makes
        for schedule in map(make, (2, 4, 8))
        for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24)
    ]


@pytest.mark.parametrize("topology", [switch, shared])
def test_fit_finds_the_figures_that_made_the_times(topology: Any) -> None:
    found = fit(measured(topology, *HALF), topology)
    assert (found.link.alpha, found.link.beta) == pytest.approx((LINK.alpha, WITH_REDUCING))
    assert found.worst_error < 1e-9
    other = fit(measured(topology, *HALF, ALL), topology)
    assert other.median_error > 0.01, "two figures cannot say what three have made"


def test_the_errors_of_a_fit_are_those_of_its_predictions() -> None:
    random = np.random.default_rng(0)
    made = [
        m._replace(seconds=m.seconds * random.uniform(0.8, 1.2)) for m in measured(switch, *HALF)
    ]
    found = fit(made, switch)
    assert found.link.alpha == pytest.approx(LINK.alpha, rel=0.2)
    assert found.link.beta == pytest.approx(WITH_REDUCING, rel=0.2)
    again = [seconds(m.schedule, m.nbytes, switch(found.link)) / m.seconds - 1 for m in made]
    assert found.errors == pytest.approx(again)
    assert found.worst_error == pytest.approx(max(map(abs, again)))
    assert found.median_error == pytest.approx(float(np.median(np.abs(again))))
    assert 0 < found.median_error < 0.2


def test_fit_finds_the_best_of_what_is_not_below_zero() -> None:
    """Times that fall with the size want a negative beta; the best without one is zero."""
    ring = algorithms.ring_all_reduce(4)
    made = [Measurement(ring, size, 1.0 / (1 + k)) for k, size in enumerate((10**3, 10**5, 10**7))]
    found = fit(made, switch)
    assert found.link.beta == 0
    squares = sum(error**2 for error in found.errors)
    for alpha in np.linspace(0, 0.2, 41):
        other = [seconds(ring, m.nbytes, switch(Link(alpha, 0))) / m.seconds - 1 for m in made]
        assert squares <= sum(error**2 for error in other) + 1e-12
    steep = [Measurement(ring, 1000, 1e-6), Measurement(ring, 1_000_000, 1.0)]
    assert fit(steep, switch).link.alpha == 0


def test_fit_refuses_what_it_cannot_tell_apart() -> None:
    ring = algorithms.ring_all_reduce(4)
    with pytest.raises(ValueError, match="longer than zero"):
        fit([Measurement(ring, 1000, 1.0), Measurement(ring, 2000, 0.0)], switch)
    for times in (0, 1, 3):
        with pytest.raises(ValueError, match=f"{times} measurements .* in the bytes of a message"):
            fit([Measurement(ring, 1000, 1.0)] * times, switch)
