"""A ring over nodes as a circle: which hops leave a node."""

from __future__ import annotations

from math import cos, pi, sin

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Wedge

from course.figures.rounds import dot
from minidist.plots import style
from minidist.plots.style import COLORS, GREY


def ring_path(count: int, local: int, inside: str, between: str) -> Figure:
    """The hops of a ring over `count` nodes of `local` ranks, clockwise from the top.

    Args:
        count: number of nodes.
        local: ranks on each of them.
        inside: what a hop between ranks of a node costs, written in the middle.
        between: what a hop from node to node costs, written there and at each such hop.
    """
    ranks = count * local
    figure, grid = style.subplots(size=(3.7, 3.7), layout="none")
    figure.subplots_adjust(0, 0, 1, 1)
    axes: Axes = grid[0, 0]
    axes.set(xlim=(-1.55, 1.55), ylim=(-1.55, 1.55), aspect="equal")
    axes.set_axis_off()
    turn = 360 / ranks
    for node in range(count):
        begin, end = 90 - (node * local + local - 0.62) * turn, 90 - (node * local - 0.38) * turn
        axes.add_patch(Wedge((0, 0), 1.17, begin, end, width=0.34, color=GREY, alpha=0.16, lw=0))
        axes.text(*_at((node + 0.5) * local - 0.5, ranks, 0.62), f"node {node}",
                  ha="center", va="center", fontsize=9)  # fmt: skip
    for rank in range(ranks):
        leaves = (rank + 1) % local == 0
        hop = FancyArrowPatch(_at(rank, ranks), _at(rank + 1, ranks), shrinkA=8, shrinkB=8)
        hop.set(arrowstyle="-|>", mutation_scale=12 if leaves else 8)
        hop.set(linewidth=3 if leaves else 1.2, color=COLORS[1] if leaves else GREY)
        axes.add_patch(hop)
        if leaves:
            axes.text(*_at(rank + 0.5, ranks, 1.33), between,
                      ha="center", va="center", fontsize=9)  # fmt: skip
        dot(axes, *_at(rank, ranks), rank, size=13)
    middle = f"once round:\n{ranks - count} × {inside}\n+ {count} × {between}"
    axes.text(0, 0, middle, ha="center", va="center", fontsize=10)
    return figure


def _at(place: float, ranks: int, radius: float = 1.0) -> tuple[float, float]:
    angle = 2 * pi * place / ranks
    return radius * sin(angle), radius * cos(angle)
