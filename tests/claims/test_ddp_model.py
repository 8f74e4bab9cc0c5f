"""What the chapter on DDP says of its model of a backward pass, tried beyond its own cells."""

import math
from typing import Any

import pytest

from minidist.parallel.sharding.partition import assign
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.cost import Link, seconds, switch
from tests.support.chapter import names_in

MIB = 1 << 20
SLOW = Link(alpha=2e-5, beta=1 / 5e9)


@pytest.fixture(scope="module")
def chapter() -> dict[str, Any]:
    """The names that the chapter's own cells define, up to its model of a step."""
    return names_in("ddp.md", {"import table": None, "def shards(": None, "def step(": None})


def waits(chapter: dict[str, Any], name: str, cap: float, link: Link) -> float:
    """Seconds from the end of backward to the last gradient."""
    first = {"naive": 0, "flat": math.inf}.get(name, MIB)
    cap = {"naive": 0, "flat": math.inf}.get(name, cap)
    buckets = assign(chapter["sizes"], first, cap)
    travels, end = chapter["step"](buckets, name == "overlapped", link=link)
    return float(travels[-1][1] - end)


@pytest.mark.parametrize("link", [Link(1e-5, 1 / 50e9), SLOW])
def test_what_waits_for_backward_costs_the_ring_s_formula(
    chapter: dict[str, Any], link: Link
) -> None:
    ranks, sizes = chapter["ranks"], chapter["sizes"]
    for name, calls in (("naive", len(sizes)), ("flat", 1)):
        formula = 2 * (ranks - 1) * (calls * link.alpha + link.beta * sum(sizes) / ranks)
        assert waits(chapter, name, 25 * MIB, link) == pytest.approx(formula)
    flat = seconds(ring_all_reduce(ranks), sum(sizes), switch(link))
    assert waits(chapter, "flat", MIB, link) == pytest.approx(flat)


@pytest.mark.parametrize("link", [Link(1e-5, 1 / 50e9), SLOW])
@pytest.mark.parametrize("cap", [4096, MIB, 25 * MIB, 300 * MIB])
def test_overlap_never_loses_and_buckets_alone_never_win(
    chapter: dict[str, Any], cap: float, link: Link
) -> None:
    flat, bucketed, overlapped = (
        waits(chapter, name, cap, link) for name in ("flat", "bucketed", "overlapped")
    )
    assert 0 < overlapped < bucketed
    assert flat < bucketed
