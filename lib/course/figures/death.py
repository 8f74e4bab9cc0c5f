"""What is left when a rank dies: every survivor's state, and no group to go on in."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PART_HATCH

WIDE, GAP, HIGH = 0.86, 0.1, 0.36
LOST = COLORS[1]
STATE = {"parameters": "weights", "optimizer state": "optimizer"}


def after_a_death(ranks: int, dead: int) -> Figure:
    """Ranks in their places with what each holds; the dead one crossed out, their group cut.

    Whole boxes are in a survivor's memory; what is lost has a dashed outline and a cross.
    """
    figure, grid = style.subplots(size=(3.45, 2.0))
    axes: Axes = grid[0, 0]
    for rank in range(ranks):
        x, gone = rank * (WIDE + GAP), rank == dead
        axes.text(x + WIDE / 2, 0.06, f"rank {rank}", ha="center", va="bottom", fontsize=8)
        for row, (part, name) in enumerate(STATE.items()):
            _box(axes, x, 0.15 + 0.42 * row, part, name, lost=gone)
        _box(axes, x, 1.05, "gradients", "gradient", lost=True)
        if rank + 1 < ranks:
            cut = dead in (rank, rank + 1)
            middle, ends = x + WIDE + GAP / 2, (x + WIDE / 2 + 0.1, x + WIDE * 1.5 + GAP - 0.1)
            look: dict[str, Any] = {
                "color": LOST if cut else GREY,
                "linestyle": ":" if cut else "-",
            }
            axes.plot(ends, (1.65, 1.65), linewidth=1.6, **look)
            if cut:
                axes.plot(middle, 1.65, "x", color=LOST, markersize=8, markeredgewidth=2)
        axes.plot(x + WIDE / 2, 1.65, "x" if gone else "o", color=LOST if gone else GREY)
    right = ranks * (WIDE + GAP)
    texts = {0.55: "kept by\nsurvivors", 1.23: "lost: step\nin flight", 1.65: "lost: group"}
    for y, text in texts.items():
        axes.text(right, y, text, va="center", fontsize=8)
    axes.set_xlim(-0.05, right + 0.95)
    axes.set_ylim(1.85, -0.2)
    axes.set_axis_off()
    return figure


def _box(axes: Axes, x: float, y: float, part: str, name: str, *, lost: bool) -> None:
    if lost:
        look: dict[str, Any] = {"edgecolor": LOST, "linestyle": "--", "fill": False, "linewidth": 1}
        axes.add_patch(Rectangle((x, y), WIDE, HIGH, **look))
    else:
        look = {"facecolor": (PART[part], 0.3), "edgecolor": (PART[part], 0.4), "linewidth": 0.6}
        hatch = PART_HATCH[part]
        axes.add_patch(Rectangle((x, y), WIDE, HIGH, hatch=hatch, **look))
    style.write(axes, x + WIDE / 2, y + HIGH / 2 + 0.01, name)
