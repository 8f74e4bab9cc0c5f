"""Samples of each rank, their mean and their spread, and those of all ranks together."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK


def spreads(values: torch.Tensor) -> Figure:
    """A row of points for each rank and one for all; a bar reaches one deviation either side.

    Args:
        values: [ranks, samples].
    """
    ranks = len(values)
    figure, grid = style.subplots(size=(3.7, 0.42 * ranks + 0.9))
    axes: Axes = grid[0, 0]
    edge = float(values.max()) + 0.5
    for rank, own in enumerate([*values, values.flatten()]):
        mean, variance = float(own.mean()), float(own.var(correction=0))
        y, wide = rank + 0.5, variance**0.5
        axes.plot([mean - wide, mean + wide], [y, y], color=GREY, linewidth=7, alpha=0.4)
        axes.plot([mean], [y], marker="|", markersize=14, markeredgewidth=2.2, color=GREY)
        for source, part in enumerate([own] if rank < ranks else values):
            color = RANK[(rank if rank < ranks else source) % len(RANK)]
            axes.plot(part, [y] * len(part), "o", color=color, markersize=4)
        axes.text(edge, y, f"{variance:.2f}", fontsize=8.5, va="center")
    axes.text(edge, -0.1, "variance", fontsize=8.5, va="center", ha="left")
    axes.axhline(ranks, color=GREY, linewidth=0.6)
    style.name_rows(axes, [*(f"rank {rank}" for rank in range(ranks)), "all"])
    axes.set_xlim(float(values.min()) - 0.2, edge + 1.1)
    axes.set_xticks([-2, -1, 0, 1, 2])
    style.table(axes, labelsize=9)
    return figure
