"""The idea of the book in one picture: a schedule, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from minidist.plots import style
from minidist.plots.style import GREY, RANK
from minidist.schedule.schedule import Step

TALL, WIDE = 2.0, 3.15  # inches


def idea(step: Step, ranks: int, said: Sequence[tuple[str, str]]) -> Figure:
    """Ranks in a circle with the messages of one step between them; beside it, its readings.

    Args:
        step: each message is an arrow in its sender's colour, with its chunk beside it.
        ranks: how many; rank 0 stands on top, the others follow clockwise.
        said: of each reading, its name and what it says.
    """
    figure, grid = style.subplots(size=(WIDE, TALL), layout=None)
    axes: Axes = grid[0, 0]
    axes.set(position=(0, 0, 1, 1), xlim=(-1.35, 1.35 * (2 * WIDE / TALL - 1)), ylim=(-1.35, 1.35))
    axes.set_axis_off()
    angle = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks
    x, y = np.cos(angle), np.sin(angle)
    for message in step:
        color = RANK[message.src % 8]
        start, end = ((x[rank], y[rank]) for rank in (message.src, message.dst))
        arrow = {"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 17, "shrinkB": 17}
        arrow |= {"connectionstyle": "arc3,rad=-0.25"}
        axes.annotate("", end, start, arrowprops=arrow)
        middle = (angle[message.src] + angle[message.dst]) / 2
        if abs(angle[message.src] - angle[message.dst]) > np.pi:
            middle += np.pi
        style.write(axes, 1.14 * np.cos(middle), 1.14 * np.sin(middle), f"chunk {message.chunk}")
    for rank in range(ranks):
        color = RANK[rank % 8]
        axes.add_patch(Circle((x[rank], y[rank]), 0.29, facecolor=(color, 0.3), edgecolor=color))
        style.write(axes, x[rank], y[rank], f"rank {rank}")
    style.write(axes, 0, 0.03, "one\nschedule", fontsize=9)
    for number, (name, text) in enumerate(said):
        top = 1.15 - 2.4 * number / len(said)
        axes.plot([1.62, 1.62], [top + 0.08, top - 0.58], color=GREY, linewidth=2)
        axes.text(1.74, top, name, va="top", fontsize=10, weight="bold")
        axes.text(1.74, top - 0.27, text, va="top", fontsize=8, linespacing=1.3)
    return figure
