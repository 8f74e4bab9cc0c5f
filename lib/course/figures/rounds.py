"""Who sends to whom, round by round: ranks from left to right, time downward."""

from __future__ import annotations

from fractions import Fraction

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, RANK
from minidist.schedule.schedule import Schedule, Step

HEIGHT = 0.62  # inches of a round


def rounds(schedule: Schedule, *, local: int = 0) -> Figure:
    """Each round of messages as arrows from senders down to receivers, in the senders' colours.

    Steps that differ only in their chunks are one round. Beside it stands what a message carries.

    Args:
        schedule: of at most 16 ranks, in which the messages of a step are equally large.
        local: ranks on each node, which then has a frame; 0 for none.
    """
    steps = list(schedule.outline())
    width = 0.35 * schedule.ranks + 0.9
    figure, grid = style.subplots(size=(width, HEIGHT * len(steps) + 0.75), layout="none")
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.98)
    axes: Axes = grid[0, 0]
    axes.set(xlim=(-0.6, schedule.ranks + 2.4), ylim=(len(steps) + 0.35, -0.75))
    axes.set_axis_off()
    for first in range(0, schedule.ranks if local else 0, local or 1):
        box = Rectangle((first - 0.45, -0.4), local - 0.1, len(steps) + 0.7)
        box.set(facecolor=GREY, alpha=0.14, linewidth=0)
        axes.add_patch(box)
        axes.text(first + (local - 1) / 2, -0.5, f"node {first // local}", ha="center", fontsize=8)
    for row, (step, times) in enumerate(steps):
        for src, dst in zip(step.src.tolist(), step.dst.tolist(), strict=True):
            _arrow(axes, row, src, dst)
        label = carried(step, times, schedule.chunks)
        axes.text(schedule.ranks - 0.35, row + 0.5, label, va="center", fontsize=8)
    for row in range(len(steps) + 1):
        for rank in range(schedule.ranks):
            dot(axes, rank, row, rank)
    return figure


def carried(step: Step, times: int, chunks: int) -> str:
    """What a message of this step carries, in shares of the tensor."""
    share = Fraction(int(step.width.max()), chunks)
    text = "all of the\ntensor" if share == 1 else f"{share} of the\ntensor"
    return f"{times} × {text}" if times > 1 else text


def dot(axes: Axes, x: float, y: float, rank: int, size: float = 13) -> None:
    """A rank: its number on its colour."""
    color = RANK[rank % len(RANK)]
    axes.plot(x, y, "o", markersize=size, color=color, markeredgecolor=GREY, zorder=4)
    axes.text(
        x, y, str(rank), ha="center", va="center_baseline", fontsize=8, zorder=5, color=ink(color)
    )


def ink(color: str) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else "white"


def _arrow(axes: Axes, row: int, src: int, dst: int) -> None:
    arrow = FancyArrowPatch((src, row), (dst, row + 1), shrinkA=6, shrinkB=7, zorder=3)
    arrow.set(arrowstyle="-|>", mutation_scale=9, color=RANK[src % len(RANK)], linewidth=1.4)
    axes.add_patch(arrow)
