"""Curves that carry their own names, over an axis whose marks say what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

SIDES = {"above": (0, 1), "below": (0, -1), "left": (-1, 0), "right": (1, 0)}
DASHES = ("-", "--", "-.", ":")  # curves differ without colour too


class Labelled(NamedTuple):
    """A curve, the x at which its name stands, and on which side: one of SIDES."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    at: float
    side: str = "above"
    color: int = 0


def labelled_curves(
    curves: Iterable[Labelled],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Mapping[float, str],
    y_log: bool = False,
    marks: Mapping[float, str] | None = None,
) -> Figure:
    """Curves over a logarithmic x axis, in a picture that a phone shows whole.

    Args:
        curves: each with its name written beside it.
        x_label: what x is.
        y_label: what y is; it stands above the axis.
        x_ticks: x → what is written there.
        y_log: a logarithmic y axis.
        marks: x → what a vertical line there means.
    """
    figure, grid = style.subplots(size=(3.3, 2.9))
    axes: Axes = grid[0, 0]
    axes.set_xscale("log")
    axes.set_yscale("log" if y_log else "linear")
    for each in curves:
        color = COLORS[each.color]
        axes.plot(each.x, each.y, DASHES[each.color % 4], color=color, linewidth=1.8)
        height = float(np.interp(np.log(each.at), np.log(each.x), each.y))
        right, up = SIDES[each.side]
        put: dict[str, Any] = {"xytext": (5 * right, 5 * up), "textcoords": "offset points"}
        put |= {"ha": ("center", "left", "right")[right], "va": ("center", "bottom", "top")[up]}
        axes.annotate(each.name, (each.at, height), fontsize=8, **put)
    for place, text in (marks or {}).items():
        axes.axvline(place, color=GREY, linewidth=1, linestyle=":")
        top = axes.get_xaxis_transform()
        axes.text(place, 1.0, text, transform=top, ha="center", va="bottom", fontsize=8)
    axes.set_xticks(list(x_ticks), list(x_ticks.values()))
    axes.minorticks_off()
    axes.set_xlabel(x_label, fontsize=8)
    axes.set_title(y_label, fontsize=8, loc="left", pad=14 if marks else 6)
    axes.grid(alpha=0.3)
    style.chart(axes, labelsize=8)
    return figure
