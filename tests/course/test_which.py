"""The chapter on choosing: wrong answers for its graders, and its prices."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course.pages.price import ask, step_of
from course.pages.published import published
from minidist.formulas import nccl
from minidist.formulas.memory import bucket_bytes
from minidist.planner.hardware import H100
from minidist.schedule.algorithms import (
    chain_all_reduce,
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from minidist.schedule.cost import Link, nodes, price, seconds, switch
from minidist.schedule.schedule import Schedule
from minidist.schedule.traffic import traffic
from tests.course.verdicts import diagnosed, names

test_each_answer_is_judged = diagnosed("which")


# ---- the chapter's prices ----

MIB = 2**20
COUNTED = [*range(1, 20), *range(150, 173), 128, 236, 256]  # segments
CLUSTER = nodes(8, Link(3e-6, 1 / 450e9), Link(10e-6, 1 / 50e9), rails=8, gamma=1e-12)
WAYS: dict[str, Callable[[int], Schedule]] = {
    "binomial tree": tree_all_reduce,
    "double tree": lambda ranks: double_tree_all_reduce(ranks, segments=16),
    "recursive doubling": recursive_doubling_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "ring": ring_all_reduce,
    "hierarchical": lambda ranks: hierarchical_all_reduce(ranks, local=8),
}


def test_the_double_tree_beats_the_hierarchy_at_25_mib_and_the_binomial_tree_anywhere() -> None:
    prices = {name: price(way(1024), CLUSTER) for name, way in WAYS.items()}
    at = {
        name: [round(1e3 * took(mib * MIB), 2) for mib in (25, 96)] for name, took in prices.items()
    }
    assert at["binomial tree"] == [8.11, 30.69]
    assert at["double tree"] == [2.07, 6.41]
    assert at["hierarchical"] == [2.84, 3.57]
    assert at["halving-doubling"] == [0.42, 1.15]
    assert at["ring"] == [9.0, 12.05]
    assert at["recursive doubling"] == [4.19, 15.85]
    assert 0.6 < prices["ring"](0) / prices["ring"](96 * MIB) < 0.7, "mostly latency"
    assert math.isclose(prices["ring"](0), (2046 - 256) * 3e-6 + 256 * 10e-6)


def test_who_wins_with_and_without_the_doublings() -> None:
    sizes = [2.0**power for power in range(8, 33)]
    for ranks in (8, 16, 24, 64, 96, 256, 384, 512, 768, 1024):
        prices = {name: price(way(ranks), CLUSTER) for name, way in WAYS.items()}

        def winners(names: list[str], prices: Any = prices) -> list[str]:
            """Without repetition, from the smallest size to the largest."""
            took = np.array([[prices[name](size) for size in sizes] for name in names])
            return list(dict.fromkeys(names[best] for best in took.argmin(axis=0)))

        if ranks & (ranks - 1) == 0:
            assert winners([*WAYS]) == ["recursive doubling", "halving-doubling"]
        large = "ring" if ranks == 8 else "hierarchical"
        double = ["double tree"] if ranks >= 384 else []
        lacking = [name for name in WAYS if "doubling" not in name]
        assert winners(lacking) == ["binomial tree", *double, large]


def test_what_crosses_the_middle_of_64_ranks() -> None:
    def across(way: Callable[[int], Schedule]) -> float:
        return traffic(way(64), 4096, 1, local=32).between_nodes / 4096

    assert across(WAYS["ring"]) == 3.9375
    assert across(WAYS["halving-doubling"]) == 2
    assert across(WAYS["recursive doubling"]) == 64


def test_the_best_number_of_segments_and_the_formula_s() -> None:
    """On a switch of 10 us and 50 GB/s, of any number near the best, not of powers of two."""
    link = switch(Link(1e-5, 1 / 50e9))
    chains = {count: price(chain_all_reduce(8, segments=count), link) for count in COUNTED}
    for size, best, formula in ((2**20, 5, 7), (2**30, 161, 236)):
        assert min(chains, key=lambda count: chains[count](size)) == best
        assert names("which")["segments"](8, size, 1e-5, 1 / 50e9) == formula
        assert 1 < chains[formula](size) / chains[best](size) < 1.021


def test_nccl_s_prices_of_the_chapter() -> None:
    def cost(algorithm: str, mib: int, count: int, protocol: str = "LL128") -> float:
        found = nccl.choice("all_reduce", algorithm, protocol, mib * MIB, count, 8, H100)
        return float(1e3 * found["seconds"])

    assert round(cost("tree", 25, 128), 2) == 0.40
    assert round(cost("ring", 25, 128), 2) == 4.61
    plain = 14e-6 + 2 * (7 * 1.25e-6 + 7 * 8.5e-6) + 2 * 25 * MIB / (0.92 * 120 / 128 * 400e9)
    assert round(1e3 * plain, 3) == 0.302, "without correction and cap"
    assert nccl.cheapest("all_reduce", 1e9, 2, 8, H100)["algorithm"] == "ring"
    asked = [1e3 * ask("all_reduce", gpus=n, nbytes=96 * MIB) for n in (64, 1024)]
    assert [round(took, 2) for took in asked] == [0.96, 1.11]
    seen = 1e3 * ask("all_reduce", gpus=64, nbytes=96 * MIB, tariff="published")
    assert round(seen, 2) == 0.94


def test_the_small_job_s_buckets_are_hidden_with_either_cap() -> None:
    for gpus, tariff in ((128, "line rate"), (64, "line rate"), (64, "published")):
        took = [
            [1e3 * ask(what, gpus=gpus, tariff=tariff, bucket_cap_mb=cap) for cap in (25, 200)]
            for what in ("communication", "exposed")
        ]
        assert 1.2 < took[0][0] / took[0][1] < 1.4
        assert all(9 < exposed < 12 for exposed in took[1])
    sizes = bucket_bytes(step_of("small", 64, 8192))
    assert len(sizes) == 141
    assert sum(round(each / MIB) == 96 for each in sizes) == 84
    flat = price(ring_all_reduce(128), CLUSTER)
    assert sum(map(flat, sizes)) > ask("backward", gpus=128)


def test_a_regret_belongs_to_a_size() -> None:
    switched = published("in_switch")
    rows = [row for row in switched["collectives_8_h200_16_gib"] if "reduce," in row[0]]
    found = {row[1]: row[2] for row in rows}
    assert round(found["NVLS"] / found["ring"], 2) == 1.31
    gpus, _, with_nvls, ring = switched["h200_8_gib"][-1]
    assert gpus == 8
    assert round(with_nvls / ring, 2) == 1.29
    for gpus, algorithm, bus, without in switched["h200_8_gib"]:
        assert (algorithm == "ring") == (gpus == 4)
        assert bus >= without
    four = dict(switched["four_nodes_h200_4_gib"])
    assert four["nvlstree forced"] < four["ring forced"]


def test_a_slow_cable_hurts_a_binomial_tree_less_if_it_is_a_leaf_s() -> None:
    good, bad = Link(1e-5, 1 / 50e9), Link(1e-5, 1 / 5e9)
    times = {}
    for name in ("ring", "binomial tree"):
        slow = [switch([bad if each == rank else good for each in range(8)]) for rank in (0, 7)]
        took = [seconds(WAYS[name](8), 1e9, link) for link in slow]
        times[name] = [each / seconds(WAYS[name](8), 1e9, switch(good)) for each in took]
    assert times["ring"][0] == times["ring"][1] > 9.9
    assert times["binomial tree"][1] < times["binomial tree"][0]
    uses = {
        rank: sum(rank in step.src or rank in step.dst for step in tree_all_reduce(8))
        for rank in (0, 7)
    }
    assert uses == {0: 6, 7: 2}
