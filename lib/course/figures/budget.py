"""Strategies beside a budget: the memory and the time that each would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

Point = tuple[float, float]  # seconds of the run, bytes on a rank


def budget(limit: Point, forecast: Mapping[str, Point], measured: Sequence[Point]) -> Figure:
    """Each strategy's forecast as a ring, what was measured as a diamond, the budget as a box."""
    figure, grid = style.subplots(size=(3.4, 3.0))
    axes: Axes = grid[0, 0]
    axes.add_patch(Rectangle((0, 0), limit[0], limit[1] / 1e6, color=COLORS[2], alpha=0.15, lw=0))
    axes.text(0.2, 0.4, "the budget", fontsize=9, color=GREY)
    looks = (
        (list(forecast.values()), "o", "none", "forecast"),
        (measured, "D", COLORS[1], "measured"),
    )
    for points, marker, fill, label in looks:
        across, up = zip(*points, strict=True)
        (line,) = axes.plot(across, [each / 1e6 for each in up], marker, label=label)
        line.set(markersize=7 if fill == "none" else 5, markerfacecolor=fill)
        line.set_markeredgecolor(COLORS[0] if fill == "none" else fill)
    for name, (seconds, held) in forecast.items():
        axes.annotate(name, (seconds, held / 1e6), (7, 4), textcoords="offset points", fontsize=9)
    most = [*forecast.values(), *measured, limit]
    axes.set_xlim(0, 1.2 * max(seconds for seconds, _ in most))
    axes.set_ylim(0, 1.15 * max(held for _, held in most) / 1e6)
    axes.set(xlabel="the run, s on the cluster's clock", ylabel="held by a rank, MB")
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure
