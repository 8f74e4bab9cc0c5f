"""Which rank sits where: nodes, the launcher on each, and what it told its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, RANK

SEAT, GAP, NODE = 1.0, 0.06, 2.0  # widths of a rank and between two; a node's height
INCH = 0.845  # of a unit: four ranks side by side are as wide as a phone


def seats(everyone: Sequence[Mapping[str, Any]]) -> Figure:
    """The ranks of each node in a row, with the numbers that they found in their environment.

    Args:
        everyone: of each rank RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, WORLD_SIZE and
            MASTER_ADDR as it was told, and the address that it found itself to have.
    """
    nodes = sorted({who["GROUP_RANK"] for who in everyone})
    widest = max(who["LOCAL_WORLD_SIZE"] for who in everyone)
    width = widest * (SEAT + GAP) + GAP
    figure, grid = style.subplots(size=(INCH * width, 0.25 + INCH * NODE * len(nodes)))
    axes: Axes = grid[0, 0]
    for number, node in enumerate(nodes):
        here = [who for who in everyone if who["GROUP_RANK"] == node]
        _node(axes, number * NODE, width, here)
    world = everyone[0]["WORLD_SIZE"]
    axes.text(0, -0.12, f"WORLD_SIZE = {world}, for all", fontsize=8, va="bottom")
    axes.set_xlim(-0.03, width + 0.03)
    axes.set_ylim(NODE * len(nodes) - 0.2, -0.35)
    axes.set_axis_off()
    return figure


def _node(axes: Axes, top: float, width: float, here: Sequence[Mapping[str, Any]]) -> None:
    first = here[0]
    frame: dict[str, Any] = {"fill": False, "edgecolor": GREY, "linestyle": "--"}
    axes.add_patch(Rectangle((0, top), width, NODE - 0.25, **frame))
    name = f"node {first['GROUP_RANK']}, address {first['address']}"
    axes.text(GAP, top + 0.2, name, fontsize=9, va="center")
    meets = first["address"] == first["MASTER_ADDR"]
    style.outline(axes, GAP, top + 0.38, width=width - 2 * GAP, height=0.36, facecolor=(GREY, 0.15))
    text = f"torchrun starts {len(here)} ranks; MASTER_ADDR = {first['MASTER_ADDR']}"
    style.write(axes, width / 2, top + 0.56, text)
    if meets:
        axes.text(width - GAP, top + 0.2, "all meet here", fontsize=8, va="center", ha="right")
    for who in here:
        left = GAP + who["LOCAL_RANK"] * (SEAT + GAP)
        color = RANK[who["RANK"] % len(RANK)]
        box: dict[str, Any] = {"width": SEAT, "height": 0.66, "linewidth": 1.2}
        style.outline(axes, left, top + 0.94, color, facecolor=(color, 0.25), **box)
        style.write(axes, left + SEAT / 2, top + 1.09, f"RANK {who['RANK']}", fontsize=9)
        style.write(axes, left + SEAT / 2, top + 1.29, f"local rank {who['LOCAL_RANK']}")
        style.write(axes, left + SEAT / 2, top + 1.47, f"→ cuda:{who['LOCAL_RANK']}")
        middle = left + SEAT / 2
        arrow: dict[str, Any] = {"arrowstyle": "->", "color": GREY, "lw": 1}
        axes.annotate("", (middle, top + 0.95), (middle, top + 0.74), arrowprops=arrow)
