"""Numbers that a formula would take, and answer wrongly, are refused by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidist.errors import ScheduleError
from minidist.schedule import algorithms
from minidist.schedule.checks import amount, whole_number
from minidist.schedule.cost import Link, Measurement, nodes, price, seconds, shared, switch
from minidist.schedule.schedule import Step
from minidist.schedule.simulate import prove_all_reduce, traffic

A: Any = algorithms  # also with arguments that the types forbid
HALF: Any = 0.5
NAN, LINK, RING = math.nan, Link(1e-5, 1e-9), algorithms.ring_all_reduce(4)

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # prices
    "nbytes -1": (
        lambda: seconds(RING, -1, switch(LINK)),
        ValueError,
        "nbytes: expected a finite number of at least 0, got -1",
    ),
    "nbytes text": (lambda: price(RING, switch(LINK))("8"), TypeError, "nbytes: .* got '8'"),  # type: ignore[arg-type]
    "measured nan": (lambda: Measurement(RING, 8, NAN), ValueError, "seconds: .* got nan"),
    "measured -1 byte": (lambda: Measurement(RING, -1, 1.0), ValueError, "nbytes: .* got -1"),
    # topologies
    "alpha -1": (lambda: Link(-1e-6, 1e-9), ValueError, "alpha: .* at least 0, got -1e-06"),
    "beta -1": (lambda: Link(1e-6, -1.0), ValueError, "beta: .* got -1"),
    "no links": (lambda: switch([]), ValueError, "link: .* got an empty list"),
    "gamma -1": (lambda: switch(LINK, -1.0), ValueError, "gamma: .* got -1"),
    "cores 0": (lambda: shared(LINK, cores=0), ValueError, "cores must be at least 1, got 0"),
    "cores 1.5": (lambda: shared(LINK, cores=1.5), TypeError, "cores: .* 1.5"),  # type: ignore[arg-type]
    "nodes of 0": (lambda: nodes(0, LINK, LINK), ValueError, "local must be at least 1, got 0"),
    "rails 0": (lambda: nodes(2, LINK, LINK, rails=0), ValueError, "rails must be .* got 0"),
    # traffic
    "numel -1": (lambda: traffic(RING, -1), ValueError, "numel must be at least 0, got -1"),
    "numel 7.5": (lambda: traffic(RING, 7.5), TypeError, "numel: .* whole number, got 7.5"),  # type: ignore[arg-type]
    "itemsize 0": (lambda: traffic(RING, 8, 0), ValueError, "itemsize must be .* got 0"),
    "local 0": (lambda: traffic(RING, 8, local=0), ValueError, "local must be .* got 0"),
    "block -1": (lambda: prove_all_reduce(RING, block=-1), ScheduleError, "block must .* got -1"),
    # schedules and algorithms
    "root 4 of 4": (
        lambda: replace(RING, root=4).check(),
        ScheduleError,
        r"ring all-reduce: root must be in 0\.\.3, got 4",
    ),
    "a schedule of half a rank": (lambda: replace(RING, ranks=HALF), TypeError, "ranks: expected"),
    "a schedule's root": (lambda: replace(RING, root=HALF), TypeError, "root: expected"),
    "a schedule's shift": (lambda: replace(RING, by=HALF), TypeError, "by: expected"),
    "ranks 1.5": (lambda: A.ring_all_reduce(1.5), TypeError, "ranks: .* whole number, got 1.5"),
    "ranks True": (lambda: A.naive_all_reduce(True), TypeError, "ranks: .* got True"),
    "root 0.5": (lambda: A.tree_broadcast(4, root=0.5), TypeError, "root: .* got 0.5"),
    "by 1.5": (lambda: A.ring_shift(4, by=1.5), TypeError, "by: .* got 1.5"),
    "segments 2.5": (lambda: A.chain_broadcast(4, segments=2.5), TypeError, "segments: .* 2.5"),
    "half a node": (lambda: A.hierarchical_all_reduce(3, local=HALF), TypeError, "local: .* 0.5"),
    "first 0.5": (lambda: list(A.ring_all_gather(4, first=0.5)), TypeError, "chunk: expected"),
    "src 0.5": (lambda: Step.of(0.5, 1, 0, True), TypeError, "src: expected whole .* got 0.5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_number_is_refused_by_name(case: str) -> None:
    ask, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        ask()


def test_what_stands_for_a_number_is_one() -> None:
    assert whole_number("n", np.int64(3)) == 3
    assert type(whole_number("n", np.int64(3), 0)) is int
    assert whole_number("n", -3) == -3
    assert amount("x", np.float32(0.5)) == 0.5
    assert amount("x", 0) == 0
    assert seconds(algorithms.ring_all_reduce(4), np.int64(0), switch(LINK)) > 0
