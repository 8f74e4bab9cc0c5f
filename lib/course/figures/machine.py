"""A picture of a machine: GPUs, their memories, and links as wide as they are fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.planner.hardware import Accelerator
from minidist.plots import style
from minidist.plots.style import COLORS, GREY

# In points, 72 to an inch, so that a link's width is exact.
BOX, PITCH, LEFT, HEIGHT = 72.0, 81.0, 2.0, 314.0
WIDEST = 52.0  # of the links, that between a GPU and its memory


class Level(NamedTuple):
    """Lower and upper edge of what stands side by side."""

    low: float
    high: float


SWITCH, GPUS, MEMORY = Level(268, 286), Level(194, 226), Level(106, 138)
CARDS, NETWORK = Level(56, 72), Level(2, 20)


def machine(gpu: Accelerator, pcie: float, gpus: Sequence[str] = ("0", "1", "7")) -> Figure:
    """One node, with some of its GPUs: each link is drawn in proportion to its bandwidth.

    Args:
        gpu: what the node is full of.
        pcie: bytes a second from a GPU to its network card, in each direction.
        gpus: numbers of those that are drawn; dots stand for those between.
    """
    width = 2 * LEFT + PITCH * (len(gpus) - 1) + BOX
    figure, grid = style.subplots(size=(width / 72, HEIGHT / 72), layout=None)
    axes: Axes = grid[0, 0]
    axes.set(position=(0, 0, 1, 1), xlim=(0, width), ylim=(0, HEIGHT))
    axes.set_axis_off()
    points = WIDEST / gpu.bandwidth
    right = width - LEFT
    _box(axes, LEFT, right, SWITCH, "NVLink switch")
    _box(axes, LEFT, right, NETWORK, "network switch, to other nodes")
    frame = Rectangle((0, 44), width, 256, fill=False, edgecolor=GREY, linestyle="--")
    axes.add_patch(frame)
    axes.text(LEFT, 304, f"one node: eight {gpu.name}", fontsize=9)
    for column, number in enumerate(gpus):
        left = LEFT + PITCH * column
        middle = left + WIDEST / 2 + 2
        _box(axes, left, left + BOX, GPUS, f"GPU {number}\n{gpu.flops / 1e12:,.0f} TFLOP/s")
        _box(axes, left, left + WIDEST + 4, MEMORY, f"HBM\n{gpu.memory / 1e9:.0f} GB")
        _box(axes, left, left + BOX, CARDS, "network card")
        _link(axes, middle, MEMORY.high, GPUS.low, gpu.bandwidth * points)
        _link(axes, middle, GPUS.high, SWITCH.low, gpu.nvlink * points)
        _link(axes, left + BOX - 6, CARDS.high, GPUS.low, pcie * points)
        _link(axes, middle, NETWORK.high, CARDS.low, gpu.network * points)
        _name(axes, left, middle, gpu, pcie)
        if column + 1 < len(gpus) and int(gpus[column + 1]) > int(number) + 1:
            style.write(axes, left + (BOX + PITCH) / 2, 159, "…", fontsize=14)
    return figure


def _name(axes: Axes, left: float, middle: float, gpu: Accelerator, pcie: float) -> None:
    """Write each link's bandwidth beside it, or into it where it is wide enough."""
    style.write(axes, middle, 166, f"{gpu.bandwidth / 1e9:,.0f}\nGB/s")
    beside: dict[str, Any] = {"ha": "left", "va": "center", "fontsize": 8}
    axes.text(middle + 7, 247, f"{gpu.nvlink / 1e9:.0f} GB/s", **beside)
    axes.text(left + BOX - 9, 89, f"PCIe {pcie / 1e9:.0f} GB/s", **(beside | {"ha": "right"}))
    axes.text(middle + 4, 32, f"{gpu.network / 1e9:.0f} GB/s", **beside)


def _box(axes: Axes, left: float, right: float, level: Level, text: str) -> None:
    style.outline(
        axes,
        left,
        level.low,
        width=right - left,
        height=level.high - level.low,
        linewidth=0.9,
        facecolor=(GREY, 0.15),
    )
    style.write(axes, (left + right) / 2, (level.low + level.high) / 2 - 0.5, text)


def _link(axes: Axes, middle: float, low: float, high: float, width: float) -> None:
    left = middle - width / 2
    band = Rectangle((left, low), width, high - low, facecolor=COLORS[0], alpha=0.55, linewidth=0)
    band.set_gid("link")
    axes.add_patch(band)
