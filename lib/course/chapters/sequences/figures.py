"""Pictures of a sequence that is split: pieces on a ring, and who may see which."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.style import RANK

WIDE = 3.7  # inches


def ring_of_keys(ranks: int) -> Figure:
    """Whose queries each rank has, and whose keys and values in each step of the ring."""
    figure, axes = style.subplots(1, 1, size=(WIDE, 0.42 * ranks + 0.55))
    heads = ["queries", "", *(f"step {step + 1}" for step in range(ranks))]
    rows = []
    for rank in range(ranks):
        keys = (_piece((rank - step) % ranks, 2 + step) for step in range(ranks))
        rows.append([_piece(rank, 0), *keys])
    cells(axes[0, 0], rows, [f"rank {rank}" for rank in range(ranks)], columns=heads)
    return figure


def _piece(owner: int, at: int) -> Cell:
    return Cell(str(owner), (RANK[owner], 0.5), 1.0, at)


def ring_work(layouts: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Bars for each rank, a panel for each layout of the sequence: layout → bars → rank."""
    figure, grid = style.subplots(1, len(layouts), size=(WIDE, 2.3), sharey=True)
    for axes, (name, bars) in zip(grid[0], layouts.items(), strict=True):
        for number, (label, heights) in enumerate(bars.items()):
            left = [rank + 0.4 * (number - 0.5) for rank in range(len(heights))]
            axes.bar(left, heights, 0.37, label=label, **style.part_look(label, number))
        axes.set_xticks(range(len(heights)), [str(rank) for rank in range(len(heights))])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        style.chart(axes, title=name, x_label="rank", bare="x")
    style.legend_below(figure, 2, grid[0, 0].get_legend_handles_labels()[0])
    return figure
