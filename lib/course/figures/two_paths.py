"""Several small steps down a valley, and one step as long as all of them together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

CURVATURE = np.array([1.0, 6.0])
START = np.array([-3.0, 0.9])


def descend(rate: float, steps: int) -> np.ndarray:
    """The points [steps + 1, 2] of gradient descent in the valley."""
    points = [START]
    for _ in range(steps):
        points.append(points[-1] - rate * CURVATURE * points[-1])
    return np.array(points)


def two_paths(rates: Sequence[float], k: int) -> Figure:
    """A panel for each rate: k steps with it, and one step with k times the rate."""
    figure, grid = style.subplots(len(rates), 1, size=(3.7, 1.45 * len(rates)), sharex=True)
    for axes, rate in zip(grid[:, 0], rates, strict=True):
        _valley(axes)
        small, large = descend(rate, k), descend(k * rate, 1)
        axes.plot(*small.T, "o-", color=COLORS[0], markersize=4, linewidth=1.4)
        axes.plot(*large.T, "s--", color=COLORS[1], markersize=5, linewidth=1.4)
        _name(axes, (small[-1, 0], small[-1, 1]), f"{k} small steps", COLORS[0], above=True)
        _name(axes, (large[-1, 0], large[-1, 1]), "one large step", COLORS[1], above=False)
        axes.set_title(f"rate {rate:g}", fontsize=9, loc="left")
    return figure


def _name(axes: Axes, end: tuple[float, float], text: str, color: str, *, above: bool) -> None:
    shift = (6, 5) if above else (6, -9)
    axes.annotate(text, end, shift, textcoords="offset points", fontsize=8.5, color=color)


def _valley(axes: Axes) -> None:
    x, y = np.meshgrid(np.linspace(-3.4, 1.4, 80), np.linspace(-2.1, 1.2, 80))
    height = (CURVATURE[0] * x**2 + CURVATURE[1] * y**2) / 2
    axes.contour(x, y, height, levels=8, colors=GREY, linewidths=0.5)
    axes.plot(0, 0, "x", color=GREY, markersize=6)
    axes.set(xlim=(-3.4, 1.4), ylim=(-2.1, 1.2), xticks=[], yticks=[])
    style.table(axes)
