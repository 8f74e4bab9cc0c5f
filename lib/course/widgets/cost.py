"""Prices of all-reduces as schedules: over the size of the tensor, for any ranks and any link."""

from functools import cache

from course.widgets.page import Slider, control, rank_stops, seconds_text, stops
from minidist.planner.hardware import ETHERNET_100, H100, PCIE_5
from minidist.schedule.algorithms import ALL_REDUCE
from minidist.schedule.cost import Link, price, switch

SHOWN = {
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "halving_doubling": "halving-doubling",
    "tree": "binomial tree",
}
KNOWN = {
    ETHERNET_100: "100 GbE",
    H100.network: "400 Gb/s InfiniBand",
    PCIE_5: "PCIe 5 x16",
    H100.node_network: "a node of H100s",
    H100.nvlink: "NVLink of an H100",
}


RANKS = rank_stops(4096)


def curves_slider() -> Slider:
    """Curves of four all-reduces on a switch, and where the best one changes."""
    alphas = [0.0, *stops(-7, -3, (1, 2, 5))]
    rates = sorted({0.0, *stops(8, 12, (1, 2, 5)), *KNOWN})
    controls = [
        control("ranks", "Ranks", RANKS, 64),
        control("alpha", "Latency α", alphas, 10e-6, seconds_text),
        control("bandwidth", "Bandwidth 1/β", rates, 50e9, rate_text),
    ]
    data = {"names": SHOWN, "mark": 96 * 2**20, "counts": {n: counts(n) for n in RANKS}}
    return Slider("curves", "What an all-reduce takes", controls, data)


@cache
def counts(ranks: int) -> dict[str, list[float]]:
    """Algorithm → messages that follow each other, and how many tensors they carry in all."""
    links = switch(Link(1, 0)), switch(Link(0, 1))
    return {name: [price(ALL_REDUCE[name](ranks), link)(1) for link in links] for name in SHOWN}


def rate_text(rate: float) -> str:
    """50 GB/s, and what has that rate."""
    named = f" ({KNOWN[rate]})" if rate in KNOWN else ""
    return f"{rate / 1e9:g} GB/s{named}"
