"""Two trees over the same ranks, back to back."""

from __future__ import annotations

from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.rounds import dot
from minidist.plots import style
from minidist.plots.style import GREY
from minidist.schedule.schedule import Schedule

NAMES = ("tree 1: first half", "tree 2: second half")


def double_tree(schedule: Schedule) -> Figure:
    """The edges on which sums travel up: of the tree for the first half above, the other below.

    A rank stands at the same place from left to right in both.
    """
    trees = edges(schedule)
    figure, grid = style.subplots(size=(min(4.8, 0.4 * schedule.ranks + 0.5), 3.2), layout="none")
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.98)
    axes: Axes = grid[0, 0]
    for parents, sign, name in zip(trees, (1, -1), NAMES, strict=True):
        top = max(level(parents, rank) for rank in range(schedule.ranks))
        for rank in range(schedule.ranks):
            y = sign * (0.55 + level(parents, rank))
            if rank in parents:
                above = sign * (0.55 + level(parents, parents[rank]))
                axes.plot([rank, parents[rank]], [y, above], color=GREY, lw=1.3, zorder=1)
            dot(axes, rank, y, rank)
        x, side = (-0.4, "left") if sign > 0 else (schedule.ranks - 0.6, "right")
        axes.text(x, sign * (top + 0.6), name, fontsize=9, va="center", ha=side)
    axes.axhline(0, color=GREY, lw=0.7, ls=":")
    axes.set(xlim=(-0.6, schedule.ranks - 0.4), ylim=(-top - 1.1, top + 1.1))
    axes.set_axis_off()
    return figure


def edges(schedule: Schedule) -> tuple[dict[int, int], dict[int, int]]:
    """Of each tree, each rank's parent."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for step in schedule:
        for send in step:
            if send.reduce:
                found[2 * send.chunk // schedule.chunks][send.src] = send.dst
    return found


def level(parents: dict[int, int], rank: int) -> int:
    """How many edges a rank is above the leaves."""

    @cache
    def height(at: int) -> int:
        return max((1 + height(child) for child, up in parents.items() if up == at), default=0)

    return height(rank)
