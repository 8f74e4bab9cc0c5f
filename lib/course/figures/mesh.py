"""The picture of hybrid sharding: ranks in a grid, a node in each row, and who talks to whom."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, PART, RANK

WIDE, HIGH, DOWN = 1.0, 0.8, 1.55  # of a rank's box, and from one node to the next


def mesh(nodes: int, local: int) -> Figure:
    """Each rank with the shard it keeps: rows share a model, columns keep copies of one shard."""
    figure, grid = style.subplots(size=(4.8, 1.15 * nodes + 0.35))
    axes: Axes = grid[0, 0]
    for rank in range(nodes * local):
        node, place = divmod(rank, local)
        _rank(axes, place * 1.25, node * DOWN, rank, place, local)
    right = (local - 1) * 1.25 + WIDE
    for node in range(nodes):
        y = node * DOWN + HIGH / 2
        for place in range(1, local):
            axes.plot([place * 1.25 - 0.25, place * 1.25], [y, y], color=GREY, lw=2)
        axes.text(-0.15, y, f"node {node}", ha="right", va="center", fontsize=8)
    bottom = (nodes - 1) * DOWN + HIGH
    for place in range(local):
        middle = place * 1.25 + WIDE / 2
        for node in range(1, nodes):
            ends = [(node - 1) * DOWN + HIGH, node * DOWN]
            axes.plot([middle] * 2, ends, color=GREY, lw=1.6, linestyle=":")
    row = "along a row (solid): gather weights, reduce-scatter gradients"
    column = "down a column (dotted): all-reduce one shard of gradients"
    axes.text(right / 2, -0.2, row, ha="center", fontsize=8)
    axes.text(right / 2, bottom + 0.2, column, ha="center", va="top", fontsize=8)
    axes.set_xlim(-0.95, right + 0.1)
    axes.set_ylim(bottom + 0.5, -0.5)
    axes.set_axis_off()
    return figure


def _rank(axes: Axes, left: float, top: float, rank: int, place: int, local: int) -> None:
    """A box in the rank's colour; in it the model as a strip, of which one shard is filled."""
    box = Rectangle((left, top), WIDE, HIGH, edgecolor=RANK[rank % 8], linewidth=2)
    box.set_facecolor("none")
    axes.add_patch(box)
    axes.text(left + WIDE / 2, top + 0.25, f"rank {rank}", ha="center", va="center", fontsize=8)
    cell = 0.8 * WIDE / local
    for number in range(local):
        shard = Rectangle((left + 0.1 + number * cell, top + 0.45), cell, 0.22)
        shard.set(edgecolor=GREY, linewidth=0.5, fill=number == place, facecolor=PART["parameters"])
        axes.add_patch(shard)
