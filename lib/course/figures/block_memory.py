"""The picture of what the operations of a block keep for backward, to scale."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH

BOX, HIGH, CELL = 0.85, 0.66, 0.27  # width and height of an operation, width of d numbers
BARS = BOX + 0.22  # where the bars begin


def block_memory(operations: Sequence[tuple[str, str, int]]) -> Figure:
    """Operations run downward; beside each, as cells, what autograd keeps for it.

    Args:
        operations: name, the tensor that it keeps, and how many times d numbers that is for a
            token; 0: it keeps nothing.
    """
    figure, grid = style.subplots(size=(3.5, 0.36 * len(operations) + 0.5))
    axes: Axes = grid[0, 0]
    for row, (name, kept, amount) in enumerate(operations):
        style.outline(axes, 0, row, width=BOX, height=HIGH, linewidth=0.8)
        style.write(axes, BOX / 2, row + HIGH / 2, name)
        if row:
            look = {"arrowstyle": "-|>", "color": GREY, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (BOX / 2, row), (BOX / 2, row - 1 + HIGH), arrowprops=look)
        for cell in range(amount):
            box = Rectangle((BARS + cell * CELL, row), CELL, HIGH, edgecolor="black", linewidth=0.5)
            box.set(facecolor=PART["activations"], hatch=PART_HATCH["activations"], alpha=0.75)
            axes.add_patch(box)
        text = f"{amount if amount > 1 else ''}d  {kept}" if amount else kept
        x = BARS + amount * CELL + 0.07 * bool(amount)
        axes.text(x, row + HIGH / 2, text, va="center", fontsize=8)
    total = sum(amount for _, _, amount in operations)
    axes.text(BARS, len(operations) + 0.25, f"together {total}d", va="center", fontsize=9)
    axes.set_xlim(-0.03, BARS + 4 * CELL + 1.3)
    axes.set_ylim(len(operations) + 0.6, -0.1)
    axes.set_axis_off()
    return figure
