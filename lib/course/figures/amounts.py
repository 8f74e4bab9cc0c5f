"""Pictures of amounts: bars in groups, and a level that jumps over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS


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
