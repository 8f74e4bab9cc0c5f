"""Curves, bars in groups, and bands on each other."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from minidist.plots import style
from minidist.plots.style import COLORS, DASHES, GREY, LABEL, MARKERS

SIZE = 3.4, 2.7
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NAME = 14  # letters in a line of a name
LINE = 0.075  # share of a panel's height
MANY = 30  # points: their markers would touch
Look = dict[str, Any]


def grouped_bars(
    groups: Mapping[str, Sequence[float]], names: Sequence[str], *, y_label: str
) -> Figure:
    """One bar for each name, side by side for each group."""
    figure, axes = style.single(size=SIZE)
    width = 0.8 / len(groups)
    for number, (label, heights) in enumerate(groups.items()):
        left = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(left, heights, 0.92 * width, label=label, **style.part_look(label, number))
    axes.set_xticks(range(len(names)), [fill(name, 10, break_long_words=False) for name in names])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    style.chart(axes, title=y_label, bare="x")
    style.legend_below(figure, 3)
    return figure


def bands(
    axes: Axes, x: ArrayLike, parts: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.float64]]:
    """Parts of the state, stacked over x; returns the lower edge of each, by name."""
    below, edges = np.zeros(np.shape(x)), dict[str, NDArray[np.float64]]()
    for name, amount in parts.items():
        edges[name] = below
        below = below + np.asarray(amount)
        axes.fill_between(x, edges[name], below, **style.part_look(name))
    return edges


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line.

    A curve without a label is one of a pair, such as the prediction of what another one measured.
    `color`: a place among `style.COLORS`, or the name of what has a colour in the whole book.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int | str = 0
    predicted: bool = False

    @property
    def hue(self) -> str:
        """Its colour."""
        return style.color_of(self.color) if isinstance(self.color, str) else COLORS[self.color]

    @property
    def place(self) -> int:
        """Its place among dashes and markers, which differ without colour too."""
        if isinstance(self.color, int):
            return self.color
        return COLORS.index(self.hue) if self.hue in COLORS else len(self.color) % len(COLORS)


def curves(
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    x_ticks: Mapping[float, str] | None = None,
    marks: Mapping[str, float] | None = None,
    x_log: bool = True,
    y_log: bool = True,
    y_zero: bool = False,
    one_scale: bool = True,
) -> Figure:
    """Curves, each with its name at its end, over a logarithmic axis unless told otherwise.

    `panels`: what y is → curves, on `one_scale` or each on its own; `x_ticks`: x → what is written
    there, powers of two if not given; `marks`: name → x of a line from top to bottom; `y_zero`: y
    begins at 0.
    """
    size = 3.4, (2.5 if one_scale else 1.8) * len(panels) + 0.3
    pad = 16 if marks else 6
    figure, drawn = style.stacked(panels, size, pad=pad, sharex=True, sharey=one_scale)
    for axes, lines in drawn:
        for curve in lines:
            draw(axes, curve)
        if x_log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if x_ticks:
            axes.set_xticks(list(x_ticks), list(x_ticks.values()))
        if y_log:
            axes.set_yscale("log")
        if y_zero:
            axes.set_ylim(bottom=0)
        for name, at in (marks or {}).items():
            axes.axvline(at, color=GREY, lw=1, ls=":")
            style.on_top(axes, at, name)
        style.chart(axes, grid=0.3)
    figure.axes[-1].set_xlabel(x_label, fontsize=style.TITLE)
    for axes, lines in drawn:
        _name_ends(axes, [curve for curve in lines if curve.label])
    return figure


def draw(axes: Axes, curve: Curve) -> None:
    """One curve, without its name."""
    dashes = DASHES[curve.place] if curve.predicted else "-"
    (line,) = axes.plot(curve.x, curve.y, color=curve.hue, ls=dashes, lw=1.4)
    if not curve.predicted and len(curve.x) <= MANY:
        line.set(marker=MARKERS[curve.place], markersize=4)


def of_steps(runs: Mapping[str, Sequence[float]]) -> list[Curve]:
    """Curves over the numbers of steps, all but the first one dashed, as they may coincide."""
    named = enumerate(runs.items())
    return [Curve(name, range(len(y)), y, place, place > 0) for place, (name, y) in named]


def _name_ends(axes: Axes, lines: Sequence[Curve]) -> None:
    """Write each curve's name beside its end, moved where it would touch another one."""
    low, high = axes.get_ylim()  # which also scales the axes
    scale = math.log if axes.get_yscale() == "log" else float
    ends = []
    for curve in lines:
        height = (scale(curve.y[-1]) - scale(low)) / (scale(high) - scale(low))
        ends.append((height, fill(curve.label, NAME, break_long_words=False), curve.hue))
    ends.sort()
    heights = [height for height, *_ in ends]
    lines_of = [1 + text.count("\n") for _, text, _ in ends]
    apart = [LINE * (one + two) / 2 for one, two in pairwise(lines_of)]
    for i, gap in enumerate(apart):
        heights[i + 1] = max(heights[i + 1], heights[i] + gap)
    heights = [min(height, 1) for height in heights]
    for i, gap in reversed([*enumerate(apart)]):
        heights[i] = min(heights[i], heights[i + 1] - gap)
    for height, (_, text, color) in zip(heights, ends, strict=True):
        look: Look = {"transform": axes.transAxes, "va": "center", "color": color}
        axes.text(1.03, height, text, fontsize=LABEL, **look)


def in_bytes(value: float) -> str:
    """A number of bytes on an axis: 256 B, 64 KiB, 16 MiB."""
    power = min(int(np.log2(max(value, 1)) // 10), len(UNITS) - 1)
    return f"{value / 1024**power:g} {UNITS[power]}"


def byte_ticks(*powers: int) -> dict[float, str]:
    """Powers of two on an axis of bytes: value → what stands there."""
    return {2.0**power: in_bytes(2.0**power) for power in powers}


def plain_logs(axes: Axes, ticks: Sequence[float]) -> None:
    """Two logarithmic axes with plain numbers at these places; limits are set afterwards."""
    axes.set(xscale="log", yscale="log", xticks=ticks, yticks=ticks)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter("")
