"""One data-parallel step: every rank on its own, but for the all-reduce in the middle."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, PART, PHASE

WIDE, HIGH = 0.86, 0.62  # of a box, in columns and rows
OPACITY = 0.45


def ddp_step(
    parts: Sequence[str], gradients: Sequence[str], mean: str, before: str, after: str
) -> Figure:
    """A column is a rank, time runs downward; only the all-reduce reaches over all columns.

    Args:
        parts: of each rank, its part of the batch.
        gradients: of each rank, the gradient that its backward makes.
        mean: what the all-reduce makes of them.
        before: the weights that all ranks begin with.
        after: the weights that all ranks end with.
    """
    ranks = len(parts)
    figure, grid = style.subplots(size=(3.3, 3.7))
    axes: Axes = grid[0, 0]
    rows = {
        "weights": ([before] * ranks, PART["parameters"]),
        "its part of\nthe batch": (parts, GREY),
        "forward": (["loss"] * ranks, PHASE["forward"]),
        "backward": (gradients, PHASE["backward"]),
        "all-reduce": ([mean], PHASE["bucket"]),
        "optimizer": ([after] * ranks, PHASE["optimizer"]),
    }
    for rank in range(ranks):  # what belongs to one rank, above and below the all-reduce
        for top, height in ((-0.12, 3.98), (4.88, 0.86)):
            style.outline(axes, rank + 0.02, top, width=0.96, height=height)
    for row, (texts, color) in enumerate(rows.values()):
        wide = WIDE if len(texts) > 1 else ranks - 1 + WIDE
        for column, text in enumerate(texts):
            x, face = column + (1 - WIDE) / 2, (color, OPACITY)
            style.outline(axes, x, row, color, width=wide, height=HIGH, facecolor=face)
            style.write(axes, x + wide / 2, row + HIGH / 2, text, fontsize=8)
        for rank in range(ranks * (row > 0)):
            ends = (rank + 0.5, row - 0.02), (rank + 0.5, row - 1 + HIGH + 0.02)
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GREY})
    axes.set_xticks([rank + 0.5 for rank in range(ranks)], [f"rank {r}" for r in range(ranks)])
    axes.xaxis.tick_top()
    axes.set_xlim(0, ranks)
    style.name_rows(axes, rows, offset=HIGH / 2)
    axes.set_ylim(len(rows) - 0.2, -0.2)
    style.table(axes, labelsize=8)
    return figure
