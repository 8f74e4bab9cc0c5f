"""Lines that carry their names at their right end, in panels one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from course.figures.winners import in_bytes
from minidist.plots import style
from minidist.plots.style import COLORS, GREY

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
APART = 0.085  # of a panel's height, between two names


class Line(NamedTuple):
    """Points of one line; its number gives colour and dashes."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    number: int = 0


def labelled(
    panels: Mapping[str, Sequence[Line]],
    *,
    x_label: str,
    y_label: str,
    marks: Mapping[str, float] | None = None,
    y_log: bool = True,
) -> Figure:
    """Lines over bytes, a panel for each title; all panels have the same axes.

    Args:
        panels: title → lines.
        x_label: what x is, in bytes.
        y_label: what y is.
        marks: name → bytes that get a line from top to bottom.
        y_log: whether y is logarithmic, too.
    """
    size = 4.8, 2.75 * len(panels) + 0.3
    figure, grid = style.subplots(len(panels), 1, size=size, sharex=True, sharey=True)
    for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
        for line in lines:
            color, dashes = COLORS[line.number % 7], DASHES[line.number % 7]
            axes.plot(line.x, line.y, color=color, ls=dashes, lw=1.7, label=line.label)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(0, 51, 5)]))
        axes.set_yscale("log" if y_log else "linear")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.25)
        axes.set_ylabel(y_label, fontsize=9)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
        style.chart(axes, labelsize=8)
    for axes, lines in zip(grid[:, 0], panels.values(), strict=True):
        _name(axes, lines)
        for name, at in (marks or {}).items():
            axes.axvline(at, color=GREY, lw=1, ls=(0, (2, 2)))
            axes.text(at, 0.98, f" {name}", fontsize=8, va="top", transform=_above(axes))
    grid[-1, 0].set_xlabel(x_label, fontsize=9)
    return figure


def _above(axes: Axes) -> object:
    return axes.get_xaxis_transform()


def _name(axes: Axes, lines: Sequence[Line]) -> None:
    """Write each name at the end of its line, moved up where it would touch the one below."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        low, high = np.log(low), np.log(high)
    free = -1.0
    ends = [(np.log(y[-1]) if axes.get_yscale() == "log" else y[-1], label, number)
            for label, _, y, number in lines]  # fmt: skip
    for end, label, number in sorted(ends):
        height = max((end - low) / (high - low), free)
        free = height + APART
        axes.text(
            1.02, height, label, color=COLORS[number % 7], fontsize=8.5, va="center",
            transform=axes.transAxes,
        )  # fmt: skip
