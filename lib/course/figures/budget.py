"""Strategies beside a budget: the memory and the time that each would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    axes.text(0.03, 0.03, "the budget", fontsize=9, color=GREY, transform=axes.transAxes)
    (ring,) = axes.plot(*zip(*forecast.values(), strict=True), "o", label="forecast")
    ring.set(markersize=7, markerfacecolor="none", markeredgecolor=COLORS[0])
    (mark,) = axes.plot(*zip(*measured, strict=True), "D", label="measured")
    mark.set(markersize=4, color=COLORS[1])
    first = min(seconds for seconds, _ in forecast.values())
    for name, (seconds, held) in forecast.items():
        side, start = (-7, "right") if seconds == first else (7, "left")
        where: dict[str, Any] = {"textcoords": "offset points", "ha": start, "va": "center"}
        axes.annotate(name, (seconds, held), (side, 1), fontsize=8, **where)
    points = [*forecast.values(), *measured, limit]
    across, up = zip(*points, strict=True)
    axes.set_xlim(0.7 * min(across), 1.15 * max(across))
    axes.set_ylim(0.7 * min(up), 1.15 * max(up))
    axes.set(xlabel="the run, s on the cluster's clock", ylabel="held by a rank, MB")
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure
