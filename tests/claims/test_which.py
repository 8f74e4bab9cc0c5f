"""What the chapter on choosing an all-reduce says, each shown by a run."""

import math
from collections.abc import Callable

import pytest

import minidist
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, nodes, price, seconds, switch
from minidist.schedule.schedule import Schedule
from minidist.schedule.simulate import prove_all_reduce, traffic

ALL: dict[str, Callable[[int], Schedule]] = {
    "naive": algorithms.naive_all_reduce,
    "tree": algorithms.tree_all_reduce,
    "recursive doubling": algorithms.recursive_doubling_all_reduce,
    "halving-doubling": algorithms.halving_doubling_all_reduce,
    "chain": lambda ranks: algorithms.chain_all_reduce(ranks, segments=4),
    "double tree": lambda ranks: algorithms.double_tree_all_reduce(ranks, segments=4),
    "ring": algorithms.ring_all_reduce,
}
LINK = Link(alpha=1e-5, beta=1e-10)
CLUSTER = nodes(8, Link(3e-6, 1 / 450e9), Link(1e-5, 1 / 50e9), rails=8, gamma=1e-12)


def sent(schedule: Schedule) -> float:
    """Tensors that the busiest rank sends, counted on one that all chunks divide evenly."""
    size = math.lcm(schedule.chunks, 64)
    return float(traffic(schedule, size, 1).sent_bytes.max()) / size


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 33])
def test_nobody_is_below_a_floor_and_two_stand_on_one(ranks: int) -> None:
    steps, least = math.ceil(math.log2(ranks)), 2 * (ranks - 1) / ranks
    for name, build in ALL.items():
        assert sum(1 for _ in build(ranks)) >= steps, name
        assert sent(build(ranks)) >= least - 1e-12, name
    assert sent(ALL["ring"](ranks)) == pytest.approx(least)
    if ranks & (ranks - 1) == 0:
        assert sum(1 for _ in ALL["recursive doubling"](ranks)) == steps
        halving = ALL["halving-doubling"](ranks)
        assert sum(1 for _ in halving) == 2 * steps
        assert sent(halving) == pytest.approx(least)


@pytest.mark.parametrize("ranks", [4, 8, 64, 1024])
def test_the_doublings_cross_where_the_formula_says(ranks: int) -> None:
    log = math.log2(ranks)
    crossing = LINK.alpha / LINK.beta * log / (log - 2 * (ranks - 1) / ranks)
    whole, halves = (price(ALL[f"{n}"](ranks), switch(LINK)) for n in list(ALL)[2:4])
    assert whole(crossing) == pytest.approx(halves(crossing))
    assert whole(crossing / 2) < halves(crossing / 2)
    assert whole(crossing * 2) > halves(crossing * 2)


@pytest.mark.parametrize(("ranks", "large"), [(64, "halving-doubling"), (96, "hierarchical")])
def test_the_loss_and_the_gradient_want_different_algorithms(ranks: int, large: str) -> None:
    ways = ALL | {"hierarchical": lambda n: algorithms.hierarchical_all_reduce(n, local=8)}
    prices = {name: price(build(ranks), CLUSTER) for name, build in ways.items()}
    assert min(prices, key=lambda name: prices[name](4)) == "recursive doubling"
    assert min(prices, key=lambda name: prices[name](1e9)) == large
    assert prices["ring"](1e9) > 3 * prices["hierarchical"](1e9), "one card out of eight"


def test_larger_tensors_want_more_segments() -> None:
    def best(size: float) -> int:
        counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        took = {
            count: seconds(algorithms.chain_all_reduce(8, segments=count), size, switch(LINK))
            for count in counts
        }
        return min(took, key=took.__getitem__)

    assert best(1e3) == 1 < best(1e6) < best(1e8)


def test_a_slow_link_holds_up_the_whole_ring_and_a_tree_only_where_it_is_used() -> None:
    slow = Link(LINK.alpha, 10 * LINK.beta)

    def slowed(name: str, rank: int) -> float:
        uneven = switch([slow if each == rank else LINK for each in range(8)])
        healthy = seconds(ALL[name](8), 1e9, switch(LINK))
        return seconds(ALL[name](8), 1e9, uneven) / healthy

    assert slowed("ring", 0) == pytest.approx(slowed("ring", 7))
    assert slowed("ring", 0) > 9
    assert slowed("tree", 7) == pytest.approx((2 * 10 + 4) / 6, rel=1e-3), "2 of 6 steps"
    assert slowed("tree", 0) > 9


@pytest.mark.parametrize("name", ["recursive doubling", "halving-doubling", "double tree"])
@pytest.mark.parametrize("ranks", [100, 256])
def test_hundreds_of_ranks_are_proven(name: str, ranks: int) -> None:
    prove_all_reduce(ALL[name](ranks).check())


def test_explain_prices_a_network_without_any_process() -> None:
    small = minidist.explain(4, ranks=1024, topology=CLUSTER)
    large = minidist.explain(10**9, ranks=1024, topology=CLUSTER)
    assert (small.choice, large.choice) == ("recursive_doubling", "halving_doubling")
    ring = seconds(algorithms.ring_all_reduce(1024), 1e9, CLUSTER)
    assert large.seconds["ring"] == pytest.approx(ring)
