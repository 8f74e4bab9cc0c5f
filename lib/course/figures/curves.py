"""Curves of what was measured and predicted, each with its name at its end."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, DASHES, GREY, MARKERS

NAME = 14  # letters in a line of a name
LINE = 0.075  # of a panel's height


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line.

    A curve without a label is one of a pair, such as the prediction of what another one measured.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    predicted: bool = False


def curves(
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    x_ticks: Mapping[float, str] | None = None,
    marks: Mapping[str, float] | None = None,
    y_log: bool = True,
) -> Figure:
    """Curves over a logarithmic x axis, each with its name at its end.

    Args:
        panels: what y is → curves. Panels stand one above the other and have the same axes.
        x_label: what x is.
        x_ticks: x → what is written there. If not given, powers of two.
        marks: name → x of a line from top to bottom.
        y_log: whether y is logarithmic, too.
    """
    size = 3.4, 2.5 * len(panels) + 0.3
    figure, grid = style.subplots(len(panels), 1, size=size, sharex=True, sharey=True)
    for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
        for curve in lines:
            color, dashes = COLORS[curve.color], DASHES[curve.color] if curve.predicted else "-"
            (line,) = axes.plot(curve.x, curve.y, color=color, ls=dashes, lw=1.4)
            if not curve.predicted:
                line.set(marker=MARKERS[curve.color], markersize=4)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if x_ticks:
            axes.set_xticks(list(x_ticks), list(x_ticks.values()))
        if y_log:
            axes.set_yscale("log")
        for name, at in (marks or {}).items():
            axes.axvline(at, color=GREY, lw=1, ls=":")
            top = {"transform": axes.get_xaxis_transform(), "va": "bottom", "ha": "center"}
            axes.text(at, 1, name, fontsize=8, **top)
        axes.set_title(title, fontsize=9, loc="left", pad=16 if marks else 6)
        axes.grid(alpha=0.3)
        style.chart(axes, labelsize=8)
    grid[-1, 0].set_xlabel(x_label, fontsize=9)
    for axes, lines in zip(grid[:, 0], panels.values(), strict=True):
        _name_ends(axes, [curve for curve in lines if curve.label])
    return figure


def _name_ends(axes: Axes, lines: Sequence[Curve]) -> None:
    """Write each curve's name beside its end, moved where it would touch another one."""
    low, high = axes.get_ylim()  # which also scales the axes
    if axes.get_yscale() == "log":
        low, high = math.log(low), math.log(high)
    ends = []
    for curve in lines:
        y = math.log(curve.y[-1]) if axes.get_yscale() == "log" else curve.y[-1]
        text = fill(curve.label, NAME, break_long_words=False)
        ends.append(((y - low) / (high - low), text, curve.color))
    ends.sort()
    heights = [end for end, *_ in ends]
    lines_of = [1 + text.count("\n") for _, text, _ in ends]
    apart = [LINE * (one + two) / 2 for one, two in pairwise(lines_of)]
    for i, gap in enumerate(apart):
        heights[i + 1] = max(heights[i + 1], heights[i] + gap)
    heights = [min(height, 1) for height in heights]
    for i, gap in reversed([*enumerate(apart)]):
        heights[i] = min(heights[i], heights[i + 1] - gap)
    for height, (_, text, color) in zip(heights, ends, strict=True):
        name = axes.text(1.03, height, text, transform=axes.transAxes, fontsize=8, va="center")
        name.set_color(COLORS[color])
