"""A run that was killed and went on: its losses beside those of one that was left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS


class Life(NamedTuple):
    """A part of a run between two starts."""

    name: str
    losses: Mapping[int, float]  # of each step that was made
    killed: bool = False


def lives(undisturbed: Sequence[float], parts: Sequence[Life]) -> Figure:
    """Above the losses, below which steps each life has made; those made twice are hatched."""
    figure, grid = style.subplots(
        2, 1, size=(3.6, 3.3), sharex=True, height_ratios=(2.4, 0.25 + 0.3 * len(parts))
    )
    above, below = grid[:, 0]
    above.plot(undisturbed, color=GREY, lw=6, alpha=0.35)
    for number, life in enumerate(parts):
        color = COLORS[number]
        look: dict[str, Any] = {"marker": MARKERS[number], "ms": 3.5, "lw": 0, "color": color}
        above.plot(*zip(*life.losses.items(), strict=True), mfc="none", **look)
        _lane(below, number, life, color, len(undisturbed))
        for later in parts[number + 1 :]:
            for step in life.losses.keys() & later.losses.keys():
                style.outline(below, step - 0.5, number + 0.1, color, height=0.8)
    above.set_ylabel("loss", fontsize=9)
    right: dict[str, Any] = {"transform": above.transAxes, "fontsize": 8, "ha": "right"}
    above.text(1, 0.9, "wide line: undisturbed", **right)
    below.set_xlabel("step", fontsize=9)
    below.set_ylim(len(parts) + 0.05, -0.05)
    below.set_xlim(-1, len(undisturbed))
    below.set_yticks([])
    for axes in (above, below):
        style.chart(axes, labelsize=8)
    below.spines["left"].set_visible(False)
    return figure


def _lane(axes: Axes, row: int, life: Life, color: str, steps: int) -> None:
    first, last = min(life.losses), max(life.losses)
    width = last - first + 1
    style.fill(axes, first - 0.5, row + 0.1, color, width=width, height=0.8, alpha=0.3)
    at = first if width > 0.022 * len(life.name) * steps else last + 2
    axes.text(at, row + 0.5, life.name, fontsize=8, va="center", ha="left")
    if life.killed:
        axes.plot(last + 0.5, row + 0.5, "x", color=COLORS[1], ms=9, mew=2.5, clip_on=False)
