"""Curves whose names stand at their ends, so that no legend is needed."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from minidist.plots import Curve, style
from minidist.plots.style import COLORS, MARKERS


def named_curves(data: Iterable[Curve], *, x_label: str, y_label: str) -> Figure:
    """Curves over logarithmic axes, x in powers of two; a curve's name stands behind its end."""
    figure, grid = style.subplots(size=(4.6, 3.4))
    axes: Axes = grid[0, 0]
    for curve in data:
        (line,) = axes.plot(curve.x, curve.y, "--" if curve.predicted else "-", linewidth=1.6)
        line.set(color=COLORS[curve.color], marker=MARKERS[curve.color], markersize=4)
        axes.text(1.25 * curve.x[-1], curve.y[-1], curve.label, va="center", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(alpha=0.3)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    style.chart(axes, labelsize=8)
    return figure
