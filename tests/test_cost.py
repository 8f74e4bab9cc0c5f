"""The cost model against formulas that can be worked out by hand."""

import math
from typing import Any

import pytest

from minidist import algorithms
from minidist.cost import Link, Measurement, fit, nodes, seconds, shared, switch

LINK = Link(alpha=1e-5, beta=1e-9)
SIZE = 1 << 20


@pytest.mark.claim("B5")
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100])
def test_ring_on_a_switch_is_the_textbook_formula(ranks: int) -> None:
    predicted = seconds(algorithms.ring_all_reduce(ranks), SIZE, switch(LINK))
    steps = 2 * (ranks - 1)
    assert predicted == pytest.approx(steps * (LINK.alpha + LINK.beta * SIZE / ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100])
def test_tree_and_naive_on_a_switch(ranks: int) -> None:
    one = LINK.alpha + LINK.beta * SIZE
    tree = seconds(algorithms.tree_all_reduce(ranks), SIZE, switch(LINK))
    assert tree == pytest.approx(2 * math.ceil(math.log2(ranks)) * one)
    naive = seconds(algorithms.naive_all_reduce(ranks), SIZE, switch(LINK))
    assert naive == pytest.approx(2 * (ranks - 1) * one)


def test_messages_that_share_a_link_take_turns() -> None:
    predicted = seconds(algorithms.ring_all_reduce(4), SIZE, shared(LINK))
    assert predicted == pytest.approx(6 * 4 * (LINK.alpha + LINK.beta * SIZE / 4))


def test_nodes_count_what_leaves_them() -> None:
    """Flat ring over 2 nodes of 2: each node's link out carries one chunk a step."""
    slow = Link(alpha=1e-4, beta=1e-8)
    predicted = seconds(algorithms.ring_all_reduce(4), SIZE, nodes(2, LINK, slow))
    assert predicted == pytest.approx(6 * (slow.alpha + slow.beta * SIZE / 4))


@pytest.mark.claim("B8")
def test_hierarchical_on_nodes_is_three_rings() -> None:
    count, local, slow = 4, 8, Link(alpha=1e-4, beta=1e-8)
    schedule = algorithms.hierarchical_all_reduce(count * local, local=local)
    inside = 2 * (local - 1) * (LINK.alpha + LINK.beta * SIZE / local)
    # All of a node's ranks send at once across its one link: together the whole tensor's share.
    across = 2 * (count - 1) * (slow.alpha + slow.beta * SIZE / count)
    predicted = seconds(schedule, SIZE, nodes(local, LINK, slow))
    assert predicted == pytest.approx(inside + across)


def measurements(topology: Any, noise: tuple[float, ...] = (0.0,)) -> list[Measurement]:
    made = []
    for index, (ranks, size) in enumerate((r, s) for r in (2, 4, 8) for s in (1 << 12, 1 << 20)):
        schedule = algorithms.ring_all_reduce(ranks)
        exact = seconds(schedule, size, topology(LINK))
        made.append(Measurement(schedule, size, exact * (1 + noise[index % len(noise)])))
    return made


@pytest.mark.parametrize("topology", [switch, shared])
def test_fit_finds_the_link_that_made_the_times(topology: Any) -> None:
    found = fit(measurements(topology), topology)
    assert found.link.alpha == pytest.approx(LINK.alpha)
    assert found.link.beta == pytest.approx(LINK.beta)
    assert max(map(abs, found.errors)) < 1e-9


def test_fit_reports_its_errors_and_stays_close_under_noise() -> None:
    found = fit(measurements(switch, noise=(0.1, -0.1, 0.05)), switch)
    assert found.link.alpha == pytest.approx(LINK.alpha, rel=0.2)
    assert found.link.beta == pytest.approx(LINK.beta, rel=0.2)
    assert 0.01 < max(map(abs, found.errors)) < 0.25


def test_fit_keeps_figures_at_or_above_zero() -> None:
    ring = algorithms.ring_all_reduce(4)
    falling = [Measurement(ring, 1000, 2.0), Measurement(ring, 1_000_000, 1.0)]
    found = fit(falling, switch)
    assert found.link.alpha > 0
    assert found.link.beta == 0
    steep = [Measurement(ring, 1000, 1e-6), Measurement(ring, 1_000_000, 1.0)]
    assert fit(steep, switch).link.alpha == 0


def test_fit_refuses_what_it_cannot_tell_apart() -> None:
    ring = algorithms.ring_all_reduce(4)
    with pytest.raises(ValueError, match="two measurements"):
        fit([Measurement(ring, 1000, 1.0)], switch)
    with pytest.raises(ValueError, match="longer than zero"):
        fit([Measurement(ring, 1000, 1.0), Measurement(ring, 2000, 0.0)], switch)
    with pytest.raises(ValueError, match="bytes in a message must differ"):
        fit([Measurement(ring, 1000, 1.0)] * 3, switch)


@pytest.mark.claim("B5")
@pytest.mark.parametrize("ranks", [4, 8, 16, 100])
def test_ring_and_tree_cross_where_the_formulas_say(ranks: int) -> None:
    ring_steps, tree_steps = 2 * (ranks - 1), 2 * math.ceil(math.log2(ranks))
    saved = tree_steps - ring_steps / ranks
    crossing = LINK.alpha / LINK.beta * (ring_steps - tree_steps) / saved
    for size, winner in ((crossing / 2, "tree"), (crossing * 2, "ring")):
        ring = seconds(algorithms.ring_all_reduce(ranks), size, switch(LINK))
        tree = seconds(algorithms.tree_all_reduce(ranks), size, switch(LINK))
        assert ("ring" if ring < tree else "tree") == winner
