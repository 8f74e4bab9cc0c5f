"""An all-to-all whose blocks are of different sizes: who has how much for whom."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import RANK


def uneven_blocks(counts: Sequence[Sequence[int]], noun: str) -> Figure:
    """What every rank has for the others, and what each of them receives.

    A block is as wide as it is large and has its sender's colour; `1→3` is from rank 1 to rank 3.

    Args:
        counts: counts[s][d] is what rank s has for rank d.
        noun: what is counted.
    """
    ranks = range(len(counts))
    before = [[(s, d, counts[s][d]) for d in ranks] for s in ranks]
    after = [[(s, d, counts[s][d]) for s in ranks] for d in ranks]
    longest = max(sum(count for *_, count in row) for row in before + after)
    figure, grid = style.subplots(2, 1, size=(3.45, 0.6 * len(counts) + 0.6))
    for axes, rows, title in zip(grid[:, 0], (before, after), ("before", "after"), strict=True):
        _bars(axes, rows)
        axes.set_title(f"{title}: {noun} on each rank", fontsize=8, loc="left")
        axes.set_xlim(-0.1, longest + 0.8)
        axes.set_xticks([])
        style.name_rows(axes, (f"rank {rank}" for rank in ranks))
        style.table(axes)
    return figure


def _bars(axes: Axes, rows: Sequence[Sequence[tuple[int, int, int]]]) -> None:
    for y, row in enumerate(rows):
        x = 0
        for src, dst, count in row:
            if count:
                style.fill(axes, x, y + 0.08, RANK[src % 8], width=count, height=0.84)
                style.outline(axes, x, y + 0.08, width=count, height=0.84)
                style.write(axes, x + count / 2, y + 0.53, f"{src}→{dst}")
            x += count
        axes.text(x + 0.15, y + 0.53, str(x), va="center", fontsize=8, fontweight="bold")
