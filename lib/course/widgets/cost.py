"""Prices of all-reduces over the size of the tensor, for any number of ranks and any link."""

from course.widgets.page import Control, Slider, control, rank_stops, seconds_text, stops
from minidist.planner.hardware import ETHERNET_100, H100, PCIE_5

SHOWN = {
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "halving_doubling": "halving-doubling",
    "tree": "tree",
}
KNOWN = {
    ETHERNET_100: "100 GbE",
    H100.network: "400 Gb/s InfiniBand",
    PCIE_5: "PCIe 5 x16",
    H100.node_network: "a node of H100s",
    H100.nvlink: "NVLink of an H100",
}


def curves_slider() -> Slider:
    """Curves of four all-reduces on a switch, and where the best one changes."""
    data = {"names": SHOWN, "mark": 25 * 2**20}
    return Slider("curves", "What an all-reduce takes", link_controls(64, 50e9), data)


def link_controls(ranks: int, bandwidth: float) -> list[Control]:
    """Sliders of the ranks, and of the link that each of them has to a switch."""
    alphas = [0.0, *stops(-7, -3, (1, 2, 5))]
    rates = sorted({0.0, *stops(8, 12, (1, 2, 5)), *KNOWN})
    return [
        control("ranks", "Ranks", rank_stops(), ranks),
        control("alpha", "Latency α", alphas, 10e-6, seconds_text),
        control("bandwidth", "Bandwidth 1/β", rates, bandwidth, rate_text),
    ]


def rate_text(rate: float) -> str:
    """50 GB/s, and what has that rate."""
    named = f" ({KNOWN[rate]})" if rate in KNOWN else ""
    return f"{rate / 1e9:g} GB/s{named}"
