"""One step of a fixed size, divided among more and more ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import PHASE

COMPUTING, MOVING = PHASE["backward"], PHASE["bucket"]


def strong_scaling(
    ranks: Sequence[int],
    computing: Sequence[float],
    moving: Sequence[float],
    crossing: int | None = None,
) -> Figure:
    """Seconds of computing, of moving the gradients, and of both one after the other.

    Args:
        ranks: how many, of each point, from 1 on; one rank moves nothing.
        computing: seconds that a rank computes.
        moving: seconds that it then moves gradients.
        crossing: the number of ranks from which on moving takes longer, to be marked.
    """
    figure, grid = style.subplots(size=(3.4, 3.0))
    axes: Axes = grid[0, 0]
    both = [c + m for c, m in zip(computing, moving, strict=True)]
    moved = [(n, m) for n, m in zip(ranks, moving, strict=True) if m > 0]
    axes.plot(ranks, both, color=style.GREY, lw=1.4, ls="--", label="both, one after the other")
    axes.plot(ranks, computing, color=COMPUTING, lw=1.8, marker="o", ms=3.5, label="computing")
    axes.plot(*zip(*moved, strict=True), color=MOVING, lw=1.8, marker="s", ms=3.5, label="moving")
    axes.set(yscale="log")
    axes.set_xlabel("ranks", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    style.chart(axes, labelsize=8)
    axes.set_xticks(ranks[::2], [f"{n:,}" for n in ranks[::2]])
    axes.set_ylabel("seconds of one step", fontsize=9)
    middle = len(ranks) // 3
    near: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    axes.annotate("computing", (ranks[middle], computing[middle]), (-46, -14), **near)
    axes.annotate("moving the gradients", (ranks[1], moving[1]), (6, -12), **near)
    axes.annotate("one after the other", (ranks[middle], both[middle]), (10, 8), **near)
    if crossing:
        axes.axvline(crossing, color=style.GREY, lw=0.9, ls=":")
        top = axes.get_ylim()[1]
        axes.annotate(f"{crossing} ranks", (crossing, top), (4, -12), **near)
    return figure
