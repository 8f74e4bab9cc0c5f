"""Prices of all-reduces over the size of the tensor, for any number of ranks and any link."""

from course.widgets.page import Control, Slider, rank_stops, seconds_text, stops
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


def curves_slider(ranks: int = 64, alpha: float = 10e-6, bandwidth: float = 50e9) -> Slider:
    """Curves of ring, doubling, halving-doubling and tree on a switch; where the best one changes.

    `ranks`: where their slider starts; so do `alpha`, in seconds, and `bandwidth`, in bytes a
    second.
    """
    return Slider(
        "curves",
        "What an all-reduce takes",
        link_controls(ranks, alpha, bandwidth),
        {"names": SHOWN, "mark": 25 * 2**20},
    )


def link_controls(ranks: int, alpha: float, bandwidth: float) -> list[Control]:
    """Sliders of the ranks, and of the link that each of them has to a switch."""
    counts = rank_stops()
    alphas = [0.0, *stops(-7, -3, (1, 2, 5))]
    rates = sorted({0.0, *stops(8, 12, (1, 2, 5)), *KNOWN})
    return [
        Control("ranks", "Ranks", counts, [f"{n:,}" for n in counts], ranks),
        Control("alpha", "Latency α", alphas, [seconds_text(each) for each in alphas], alpha),
        Control(
            "bandwidth", "Bandwidth 1/β", rates, [rate_text(each) for each in rates], bandwidth
        ),
    ]


def rate_text(rate: float) -> str:
    """50 GB/s, and what has that rate."""
    named = f" ({KNOWN[rate]})" if rate in KNOWN else ""
    return f"{rate / 1e9:g} GB/s{named}"
