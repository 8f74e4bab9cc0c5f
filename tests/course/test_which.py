"""The chapter on choosing: wrong answers for its graders, and its prices."""

from collections.abc import Callable

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
)
from minidist.schedule.cost import Link, nodes, price, switch
from minidist.schedule.schedule import Schedule
from minidist.schedule.traffic import traffic
from tests.course.verdicts import diagnosed, names

test_each_answer_is_judged = diagnosed("which")


# ---- the chapter's prices ----

MIB = 2**20
COUNTED = [*range(1, 20), *range(150, 173), 128, 236, 256]  # segments
CLUSTER = nodes(8, Link(3e-6, 1 / 450e9), Link(10e-6, 1 / 50e9), rails=8, gamma=1e-12)
WAYS: dict[str, Callable[[int], Schedule]] = {
    "ring": ring_all_reduce,
    "double tree": lambda ranks: double_tree_all_reduce(ranks, segments=16),
    "hierarchical": lambda ranks: hierarchical_all_reduce(ranks, local=8),
}


def test_schedules_of_a_bucket_over_1024_ranks() -> None:
    prices = {name: price(way(1024), CLUSTER) for name, way in WAYS.items()}
    at = {name: round(1e3 * took(96 * MIB), 2) for name, took in prices.items()}
    assert at == {"ring": 12.05, "double tree": 6.41, "hierarchical": 3.57}


def test_the_map_of_what_nccl_picks() -> None:
    def picked(count: int) -> list[str]:
        """Without repetition, from 4 bytes to 16 GiB."""
        found = [nccl.cheapest("all_reduce", 2.0**power, count, 8, H100) for power in range(2, 35)]
        return list(dict.fromkeys(f"{each['algorithm']}, {each['protocol']}" for each in found))

    tree = ["tree, LL", "tree, LL128"]
    assert picked(1) == ["ring, LL", "ring, LL128", "ring, Simple"]
    for count in (2, 3, 4, 6, 8):
        assert picked(count) == [*tree, "ring, LL128", "ring, Simple"]
    for count in (12, 16, 24, 32, 64, 128, 256):
        assert picked(count) == [*tree, "tree, Simple", "ring, Simple"]
    assert picked(1024) == [*tree, "tree, Simple"]


def test_what_crosses_the_middle_of_64_ranks() -> None:
    def across(way: Callable[[int], Schedule]) -> float:
        return traffic(way(64), 4096, 1, local=32).between_nodes / 4096

    assert across(ring_all_reduce) == 3.9375
    assert across(halving_doubling_all_reduce) == 2
    assert across(recursive_doubling_all_reduce) == 64


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
