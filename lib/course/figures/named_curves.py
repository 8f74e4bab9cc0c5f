"""Curves whose names stand beside them, so that no legend is needed."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from minidist.plots import Curve, style
from minidist.plots.style import COLORS, MARKERS


def named_curves(data: Iterable[Curve], *, x_label: str, y_label: str) -> Figure:
    """Curves over logarithmic axes, x in powers of two; a curve's name stands above its middle."""
    figure, grid = style.subplots(size=(3.3, 3.2))
    axes: Axes = grid[0, 0]
    for curve in data:
        (line,) = axes.plot(curve.x, curve.y, "--" if curve.predicted else "-", linewidth=1.6)
        line.set(color=COLORS[curve.color], marker=MARKERS[curve.color], markersize=4)
        at = curve.x[len(curve.x) // 2], curve.y[len(curve.y) // 2]
        text = axes.annotate(curve.label, at, (-3, 5), textcoords="offset points", fontsize=8)
        text.set_horizontalalignment("right")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(alpha=0.3)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    style.chart(axes, labelsize=8)
    return figure
