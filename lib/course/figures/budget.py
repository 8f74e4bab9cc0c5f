"""Strategies beside a budget: the memory and the time that each would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

Point = tuple[float, float]  # seconds of the run, MB on a rank


def budget(limit: Point, forecast: Mapping[str, Point], measured: Sequence[Point]) -> Figure:
    """Each strategy's forecast as a ring, what was measured as a diamond, the budget as a box."""
    figure, grid = style.subplots(size=(3.4, 3.0))
    axes: Axes = grid[0, 0]
    axes.add_patch(Rectangle((0, 0), *limit, color=COLORS[2], alpha=0.15, lw=0))
    axes.text(0.2, 0.4, "the budget", fontsize=9, color=GREY)
    (ring,) = axes.plot(*zip(*forecast.values(), strict=True), "o", label="forecast")
    ring.set(markersize=7, markerfacecolor="none", markeredgecolor=COLORS[0])
    (mark,) = axes.plot(*zip(*measured, strict=True), "D", label="measured")
    mark.set(markersize=4, color=COLORS[1])
    for name, (seconds, held) in forecast.items():
        axes.annotate(name, (seconds, held), (7, 4), textcoords="offset points", fontsize=9)
    most = [*forecast.values(), *measured, limit]
    axes.set_xlim(0, 1.2 * max(seconds for seconds, _ in most))
    axes.set_ylim(0, 1.15 * max(held for _, held in most))
    axes.set(xlabel="the run, s on the cluster's clock", ylabel="held by a rank, MB")
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure
