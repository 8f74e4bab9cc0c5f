"""The effective batch: what the ranks take, micro-batch by micro-batch, before one step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, PHASE, RANK

GAP = 0.6  # between ranks, in samples


def global_batch(ranks: int, micro: int, batch: int) -> Figure:
    """A column for each rank, a row for each micro-batch, a cell for each sample.

    Args:
        ranks: ranks, each with its colour.
        micro: micro-batches to a step.
        batch: samples in a micro-batch of a rank.
    """
    figure, grid = style.subplots(size=(3.7, 0.55 * micro + 1.1))
    axes: Axes = grid[0, 0]
    width = ranks * (batch + GAP) - GAP
    for rank in range(ranks):
        left = rank * (batch + GAP)
        style.write(axes, left + batch / 2, -0.28, f"rank {rank}", fontsize=9)
        for row in range(micro):
            for sample in range(batch):
                color = RANK[rank % len(RANK)], 0.45
                style.outline(axes, left + sample, row, linewidth=0.8, height=0.7, facecolor=color)
    box = Rectangle((0, micro + 0.05), width, 0.62, edgecolor=GREY, linewidth=0.8)
    box.set_facecolor((PHASE["reduce-scatter"], 0.25))
    axes.add_patch(box)
    style.write(axes, width / 2, micro + 0.36, "one all-reduce, one optimizer step", fontsize=9)
    axes.set_yticks([row + 0.35 for row in range(micro)],
                    [f"micro-batch {row + 1}" for row in range(micro)])  # fmt: skip
    axes.set_xticks([])
    axes.set(xlim=(-0.1, width + 0.1), ylim=(micro + 0.75, -0.55))
    style.table(axes, labelsize=9)
    return figure
