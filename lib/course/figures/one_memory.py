"""An all-reduce without messages: what each rank reads and writes in a memory that all share."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK

TITLES = ("1  copy in", "2  sum a column", "3  copy out")


def one_memory(ranks: int = 4) -> Figure:
    """Three panels; a row is a rank's segment, a column a chunk, a colour the rank that acts."""
    figure, grid = style.subplots(1, 3, size=(3.7, 1.75))
    for number, (axes, title) in enumerate(zip(grid[0], TITLES, strict=True)):
        for row in range(ranks):
            for column in range(ranks):
                _cell(axes, number, row, column)
        axes.set_xlim(-0.05, ranks + 0.05)
        style.name_rows(axes, (f"{rank}" for rank in range(ranks)))
        axes.set_xticks([column + 0.5 for column in range(ranks)], range(ranks))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("chunk", fontsize=8)
        style.table(axes)
    grid[0, 0].set_ylabel("segment of rank", fontsize=8)
    return figure


def _cell(axes: Axes, panel: int, row: int, column: int) -> None:
    """In step 1 a rank writes its row, in 2 it reads its column, in 3 all read the diagonal."""
    who = (row, column, column)[panel]
    color = RANK[who % len(RANK)]
    if panel < 2 or row == column:
        style.fill(axes, column, row, color, alpha=0.55)
    if panel and row == column:
        style.outline(axes, column, row, color, linewidth=1.8)
        style.write(axes, column + 0.5, row + 0.54, "Σ", fontsize=9)
    else:
        style.outline(axes, column, row, GREY)
