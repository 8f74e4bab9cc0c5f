"""Algorithms between two floors: steps, and what the busiest rank sends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS


def floors(
    counted: Mapping[str, tuple[float, float]],
    ranks: int,
    places: Mapping[str, tuple[float, float]],
) -> Figure:
    """Each algorithm at its number of steps and the tensors that its busiest rank sends.

    Args:
        counted: name → (steps, tensors sent).
        ranks: whose two floors are drawn.
        places: name → where it is written, in points from its mark, if not to the right.
    """
    figure, grid = style.subplots(size=(4.2, 3.4))
    axes: Axes = grid[0, 0]
    least_steps, least_sent = np.ceil(np.log2(ranks)), 2 * (ranks - 1) / ranks
    axes.axvline(least_steps, color=GREY, ls="--", lw=1)
    axes.axhline(least_sent, color=GREY, ls="--", lw=1)
    for number, (name, (steps, sent)) in enumerate(counted.items()):
        axes.plot(steps, sent, MARKERS[number % 7], color=COLORS[number % 7], markersize=8)
        x, y = places.get(name, (8, 0))
        side = "left" if x >= 0 else "right"
        axes.annotate(
            name, (steps, sent), (x, y), textcoords="offset points",
            fontsize=9, ha=side, va="center",
        )  # fmt: skip
    axes.text(least_steps * 1.06, ranks, "fewest steps", fontsize=8, color=GREY)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="tensors sent by the busiest rank")
    axes.set(xlim=(least_steps * 0.8, 2.9 * ranks), ylim=(least_sent * 0.55, 1.45 * ranks))
    axes.text(least_steps * 0.85, least_sent * 0.93, "fewest bytes", fontsize=8, color=GREY,
              va="top")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    style.chart(axes, labelsize=8)
    return figure
