"""NCCL's cost model against its own tables, hand calculations and a reader's figures."""

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest

from minidist.formulas import nccl
from tests.support.cases import alike

MIB = 2**20
SIZES = [2.0**k for k in range(2, 33)]
A100 = SimpleNamespace(name="A100", nvlink=300e9, network=25e9, per_node=8, generation="ampere")
H100 = SimpleNamespace(name="H100", nvlink=450e9, network=50e9, per_node=8, generation="hopper")
B200 = SimpleNamespace(name="B200", nvlink=900e9, network=50e9, per_node=8, generation="blackwell")
GPUS = [A100, H100, B200]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter"]


def price(algorithm: str, protocol: str, nbytes: float, nodes: int, local: int = 8) -> Any:
    """One all-reduce on H100s."""
    return nccl.choice("all_reduce", algorithm, protocol, nbytes, nodes, local, H100)


def test_one_rank_takes_no_time() -> None:
    assert {nccl.seconds(each, 1e9, 1, 1, gpu) for each in COLLECTIVES for gpu in GPUS} == {0.0}


def test_times_grow_with_sizes_that_are_powers_of_two() -> None:
    wrong = []
    for gpu, nodes, collective in product(GPUS, (1, 2, 4, 16, 128), COLLECTIVES):
        took = [nccl.seconds(collective, size, nodes, 8, gpu) for size in SIZES]
        if not all(a < b for a, b in pairwise(took)):
            wrong.append(f"{collective} on {nodes} nodes of {gpu.name}s: {took}")
    assert not wrong, "\n".join(wrong)


def test_protocols_by_size() -> None:
    found = {
        (gpu.name, nodes, size): nccl.cheapest("all_reduce", size, nodes, 8, gpu)["protocol"]
        for gpu, nodes, size in product(GPUS, (1, 2, 128), (4, 64e9))
    }
    alike(found, {case: "LL" if case[-1] == 4 else "Simple" for case in found})


def test_ll_is_capped() -> None:
    def bus(nodes: int, gpu: Any) -> float:
        return nccl.bus_bandwidth("ring", "LL", nodes, 8, gpu) / 1e9

    assert [bus(n, H100) for n in (1, 2, 4, 128)] == [141.0, 39.0, 20.4, 20.4]
    assert [bus(n, A100) for n in (1, 2, 4)] == [87.7, 39.0, 20.4]
    assert bus(1, B200) == 282.0


def test_ll128_and_trees_are_capped_per_channel() -> None:
    assert nccl.bus_bandwidth("ring", "LL128", 1, 8, H100) == pytest.approx(0.92 * 450e9)
    assert nccl.bus_bandwidth("ring", "LL128", 4, 8, H100) == pytest.approx(8 * 36.7e9)
    assert nccl.bus_bandwidth("tree", "LL128", 4, 8, H100) == pytest.approx(8 * 29e9)
    assert nccl.bus_bandwidth("tree", "Simple", 4, 8, H100) == pytest.approx(8 * 36e9)


def test_latency_of_a_ring_is_linear_and_of_a_tree_logarithmic() -> None:
    found, right = {}, {}
    for protocol in nccl.PROTOCOLS:
        ring = [price("ring", protocol, 0.0, n)["latency"] for n in (2, 3, 4, 64, 128)]
        tree = [price("tree", protocol, 0.0, n)["latency"] for n in (2, 4, 8, 128)]
        found[protocol] = ring[2] - ring[1], ring[4] - ring[3], tree[2] - tree[1], tree[3] - tree[2]
        once, level = ring[1] - ring[0], tree[1] - tree[0]
        right[protocol] = pytest.approx((once, 64 * once, level, 4 * level))
    alike(found, right)


def test_readers_figures_for_25_mib_on_1024_ranks() -> None:
    ring, tree = (price(each, "LL128", 25 * MIB, 128) for each in ("ring", "tree"))
    assert ring["latency"] == pytest.approx(1e-6 * (14 + 1792 * 1.9 + 254 * 4))
    assert ring["seconds"] == pytest.approx(4.6e-3, rel=0.01)
    assert tree["latency"] == pytest.approx(1e-6 * (14 + 14 * 1.25 + 14 * 8.5))
    # The reader's 0.30 ms leaves out the caps per channel and the correction by size.
    plain = 0.5 * 0.92 * 120 / 128 * 400e9
    assert tree["latency"] + 25 * MIB / plain == pytest.approx(0.302e-3, rel=0.01)
    assert tree["seconds"] == pytest.approx(0.40e-3, rel=0.01)
    best = nccl.cheapest("all_reduce", 25 * MIB, 128, 8, H100)
    assert (best["algorithm"], best["protocol"]) == ("tree", "LL128")
    simple = price("tree", "Simple", 25 * MIB, 128)
    assert simple["latency"] == pytest.approx(1e-6 * (8.4 + 14 * 4 + 14 * 14))


def test_eight_gpus_by_hand() -> None:
    # 8.4 + 14 * 3.4 us, and 7/4 of the bytes over NVLink; no plateau in a node
    assert nccl.seconds("all_reduce", 1e9, 1, 8, H100) == pytest.approx(56e-6 + 1e9 * 1.75 / 450e9)
    half = 32.2e-6 + 1e9 * 0.875 / 450e9
    assert nccl.seconds("all_gather", 1e9, 1, 8, H100) == pytest.approx(half)


def test_sixteen_gpus_by_hand() -> None:
    # 28 steps in nodes, 2 between; 1.4 is the plateau
    expected = 1.4e-6 * (8.4 + 28 * 3.4 + 2 * 14) + 1e9 * 1.875 / 400e9
    assert nccl.seconds("all_reduce", 1e9, 2, 8, H100) == pytest.approx(expected)
    assert price("ring", "Simple", 1024, 2)["latency"] == pytest.approx(131.6e-6)


def test_one_gpu_per_node_takes_the_plain_tree_and_its_latency() -> None:
    assert price("ring", "Simple", 0.0, 4, 1)["latency"] == pytest.approx(92.4e-6)
    rate = 0.5 * 0.85 * 0.92 * 50e9
    assert price("tree", "Simple", 2.0**40, 4, 1)["bandwidth"] == pytest.approx(rate)
