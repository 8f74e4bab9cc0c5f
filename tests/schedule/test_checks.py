"""Numbers that a formula would take, and answer wrongly, are refused by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidist.schedule import algorithms
from minidist.schedule.checks import whole_number
from minidist.schedule.cost import Link, nodes, seconds, shared, switch
from minidist.schedule.schedule import Step
from minidist.schedule.simulate import traffic

A: Any = algorithms  # also with arguments that the types forbid
LINK, RING = Link(1e-5, 1e-9), algorithms.ring_all_reduce(4)

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: seconds(RING, -1, switch(LINK)), ValueError, "nbytes: expected a finite .* got -1"),
    (lambda: seconds(RING, math.nan, switch(LINK)), ValueError, "nbytes: .* got nan"),
    (lambda: Link(-1e-6, 1e-9), ValueError, "alpha: .* at least 0, got -1e-06"),
    (lambda: switch(LINK, -1.0), ValueError, "gamma: .* got -1"),
    (lambda: shared(LINK, cores=0), ValueError, "cores must be at least 1, got 0"),
    (lambda: nodes(0, LINK, LINK), ValueError, "local must be at least 1, got 0"),
    (lambda: nodes(2, LINK, LINK, rails=0), ValueError, "rails must be at least 1, got 0"),
    (lambda: traffic(RING, -1), ValueError, "numel must be at least 0, got -1"),
    (lambda: traffic(RING, 8, 0), ValueError, "itemsize must be at least 1, got 0"),
    (lambda: replace(RING, chunks=0), ValueError, "chunks must be at least 1, got 0"),
    (lambda: A.ring_all_reduce(1.5), TypeError, "ranks: expected a whole number, got 1.5"),
    (lambda: A.naive_all_reduce(True), TypeError, "ranks: .* got True"),
    (lambda: A.tree_broadcast(4, root=0.5), TypeError, "root: .* got 0.5"),
    (lambda: A.ring_shift(4, by=1.5), TypeError, "by: .* got 1.5"),
    (lambda: A.chain_all_reduce(4, segments=2.5), TypeError, "chunks: .* got 2.5"),
    (lambda: A.hierarchical_all_reduce(6, local=4), ValueError, "6 ranks .* into nodes of 4"),
    (lambda: list(A.ring_all_gather(4, first=0.5)), TypeError, "chunk: expected whole numbers"),
    (lambda: Step.of(0.5, 1, 0, True), TypeError, "src: expected whole numbers, got 0.5"),
]


@pytest.mark.parametrize(("ask", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_wrong_number_is_refused_by_name(
    ask: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask()


def test_what_stands_for_a_number_is_one() -> None:
    assert type(whole_number("n", np.int64(3), 0)) is int
    assert whole_number("n", -3) == -3
    assert seconds(RING, np.int64(0), switch(Link(np.float32(0.5), 0))) == 3
