"""Line charts of what was measured and predicted, over a logarithmic x axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, MARKERS


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    predicted: bool = False


def curves(
    data: Iterable[Curve], *, x_label: str, y_label: str, x_base: int = 10, y_log: bool = True
) -> Figure:
    """Measured and predicted figures over a logarithmic x axis."""
    figure, grid = style.subplots(size=(6.4, 4.4))
    axes: Axes = grid[0, 0]
    for curve in data:
        color, dashes = COLORS[curve.color], "--" if curve.predicted else "-"
        (line,) = axes.plot(curve.x, curve.y, dashes, color=color, lw=1.4, label=curve.label)
        if not curve.predicted:
            line.set(marker=MARKERS[curve.color], markersize=5)
    axes.grid(alpha=0.3)
    axes.set_xscale("log", base=x_base)
    if y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure
