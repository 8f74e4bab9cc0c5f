"""Predictions beside measurements: on the diagonal they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS


def foretold(
    points: Mapping[str, Sequence[tuple[float, float]]], *, what: str, band: float = 0.25
) -> Figure:
    """A mark for each pair, by kind; between the dotted lines the error is at most `band`.

    Args:
        points: kind → pairs (predicted, measured).
        what: is predicted, with its unit.
    """
    figure, grid = style.subplots(size=(3.4, 3.4))
    axes: Axes = grid[0, 0]
    every = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = [min(every) / 1.4, max(every) * 1.4]
    axes.plot(ends, ends, color=GREY, lw=1.2)
    for factor in (1 + band, 1 - band):
        axes.plot(ends, [factor * end for end in ends], color=GREY, lw=0.9, ls=":")
    for number, (kind, pairs) in enumerate(points.items()):
        axes.plot(*zip(*pairs, strict=True), MARKERS[number], color=COLORS[number],
                  label=kind, markersize=5, alpha=0.85, ls="none")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"predicted {what}", fontsize=9)
    axes.set_ylabel(f"measured {what}", fontsize=9)
    style.chart(axes, labelsize=8)
    style.legend_below(figure, 3)
    return figure
