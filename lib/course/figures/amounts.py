"""Pictures of amounts: bars in groups or stacked, curves side by side, a level over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import Curve, curves, style
from minidist.plots.style import COLORS, HATCHES


def grouped_bars(
    groups: Mapping[str, Sequence[float]], names: Sequence[str], *, y_label: str
) -> Figure:
    """One bar for each name, side by side for each group."""
    figure, grid = style.subplots(size=(6.4, 3.2))
    axes: Axes = grid[0, 0]
    width = 0.8 / len(groups)
    for number, (label, heights) in enumerate(groups.items()):
        left = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(left, heights, 0.92 * width, label=label, color=COLORS[number])
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    style.chart(axes)
    style.legend_below(figure, len(groups))
    return figure


def stacked_bars(
    panels: Sequence[Mapping[str, Mapping[str, float]]],
    *,
    y_label: str,
    limit: tuple[str, float] | None = None,
    marks: tuple[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Bars stacked of named parts, in panels side by side that each have a scale of their own.

    Args:
        panels: of each panel: bar → part → amount. A bar may lack parts.
        y_label: what is counted, with its unit.
        limit: name and height of a line across all panels, such as the memory of a GPU.
        marks: name and heights of a mark on each bar of the first panel, such as what was measured.
    """
    parts = list(dict.fromkeys(part for bars in panels for bar in bars.values() for part in bar))
    widths = [len(bars) for bars in panels]
    figure, grid = style.subplots(1, len(panels), size=(7.2, 3.6), width_ratios=widths)
    for axes, bars in zip(grid.flat, panels, strict=True):
        bottom = np.zeros(len(bars))
        for number, part in enumerate(parts):
            amounts = np.array([bar.get(part, 0.0) for bar in bars.values()])
            look = {"facecolor": COLORS[number], "hatch": HATCHES[number], "edgecolor": "black"}
            axes.bar(
                list(bars), amounts, 0.62, bottom, label=part, linewidth=0.5, alpha=0.8, **look
            )
            bottom += amounts
        if limit:
            axes.axhline(limit[1], color="black", linestyle="--", linewidth=1.2, label=limit[0])
        style.chart(axes)
        axes.tick_params(axis="x", labelsize=8, length=0)
    if marks:
        name, heights = marks
        (line,) = grid[0, 0].plot(list(heights), list(heights.values()), "D", label=name)
        line.set(markersize=7, markerfacecolor="white", markeredgecolor="black")
    grid[0, 0].set_ylabel(y_label)
    style.legend_below(figure, 3)
    return figure


def measured_and_predicted(
    x: Sequence[float],
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
) -> Figure:
    """Over the same x, in powers of 2: what was measured, and dashed what was predicted.

    Args:
        x: of all points, such as sizes in bytes.
        pairs: label → (measured, predicted).
        x_label: what x is.
        y_label: what was measured.
    """
    lines = []
    for color, (label, (measured, predicted)) in enumerate(pairs.items()):
        lines.append(Curve(f"{label}, measured", x, measured, color))
        lines.append(Curve(f"{label}, predicted", x, predicted, color, predicted=True))
    return curves(lines, x_label=x_label, y_label=y_label, x_base=2)


def level(
    curve: Sequence[tuple[float, float]],
    marks: Mapping[str, float],
    *,
    x_label: str,
    y_label: str,
) -> Figure:
    """An amount that goes up and down in jumps, with named heights marked by dashed lines."""
    figure, grid = style.subplots(size=(7.2, 3.4))
    axes: Axes = grid[0, 0]
    when, amount = zip(*curve, strict=True)
    axes.fill_between(when, amount, step="post", color=COLORS[0], alpha=0.35, linewidth=0)
    axes.step(when, amount, where="post", color=COLORS[0], linewidth=1)
    for number, (name, height) in enumerate(marks.items(), 1):
        axes.axhline(height, color=COLORS[number], linestyle="--", linewidth=1.4, label=name)
    axes.set_ylim(bottom=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    style.chart(axes)
    style.legend_below(figure, 3)
    return figure
