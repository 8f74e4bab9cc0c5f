"""Pictures of amounts: bars in groups or stacked, a level over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, HATCHES

SIZE = 3.4, 2.7


def grouped_bars(
    groups: Mapping[str, Sequence[float]], names: Sequence[str], *, y_label: str
) -> Figure:
    """One bar for each name, side by side for each group."""
    figure, grid = style.subplots(size=SIZE)
    axes: Axes = grid[0, 0]
    width = 0.8 / len(groups)
    for number, (label, heights) in enumerate(groups.items()):
        left = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(left, heights, 0.92 * width, label=label, **_look(number))
    axes.set_xticks(range(len(names)), [fill(name, 10, break_long_words=False) for name in names])
    _finish(figure, axes, y_label)
    return figure


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    *,
    y_label: str,
    marks: tuple[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Bars stacked of named parts.

    Args:
        bars: bar → part → amount. A bar may lack parts.
        y_label: what is counted, with its unit.
        marks: name and heights of a mark on each bar, such as what was measured.
    """
    figure, grid = style.subplots(size=SIZE)
    axes: Axes = grid[0, 0]
    bottom = np.zeros(len(bars))
    for number, part in enumerate(dict.fromkeys(part for bar in bars.values() for part in bar)):
        amounts = np.array([bar.get(part, 0.0) for bar in bars.values()])
        axes.bar(list(bars), amounts, 0.62, bottom, label=part, **_look(number))
        bottom += amounts
    if marks:
        name, heights = marks
        (line,) = axes.plot(list(heights), list(heights.values()), "D", label=name)
        line.set(markersize=6, markerfacecolor="white", markeredgecolor="black")
    _finish(figure, axes, y_label)
    return figure


def _look(number: int) -> dict[str, Any]:
    """Parts differ without colour too."""
    look = {"facecolor": COLORS[number], "hatch": HATCHES[number], "edgecolor": "black"}
    return look | {"linewidth": 0.5, "alpha": 0.8}


def _finish(figure: Figure, axes: Axes, y_label: str) -> None:
    axes.set_title(y_label, fontsize=9, loc="left")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    style.chart(axes, labelsize=8)
    axes.tick_params(axis="x", length=0)
    style.legend_below(figure, 3)


def level(
    curve: Sequence[tuple[float, float]],
    marks: Mapping[str, float],
    *,
    x_label: str,
    y_label: str,
) -> Figure:
    """An amount that goes up and down in jumps, with named heights marked by dashed lines."""
    figure, grid = style.subplots(size=SIZE)
    axes: Axes = grid[0, 0]
    when, amount = zip(*curve, strict=True)
    axes.fill_between(when, amount, step="post", color=COLORS[0], alpha=0.35, linewidth=0)
    axes.step(when, amount, where="post", color=COLORS[0], linewidth=1)
    for number, (name, height) in enumerate(marks.items(), 1):
        style.height_line(axes, name, height, COLORS[number])
    axes.set_ylim(bottom=0)
    axes.set_xlim(when[0], when[-1])
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_title(y_label, fontsize=9, loc="left")
    style.chart(axes, labelsize=8)
    return figure
