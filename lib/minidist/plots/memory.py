"""Pictures of memory: stacked bars of its parts, and how it goes up and down over a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, HATCHES
from minidist.profiler.spans import COMPUTE, Span

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
PHASES = {"forward": 0, "backward": 1, "optimizer": 2}  # name → colour, as on a timeline


class Recorded(Protocol):
    """What `memory_curve` draws, such as a `minidist.memory.meter.Curve`."""

    @property
    def points(self) -> list[tuple[float, int]]:
        """(seconds, bytes), after each change."""

    @property
    def spans(self) -> list[Span]:
        """What ran when, in the same seconds."""


def memory_curve(
    recorded: Mapping[str, Recorded],
    heights: Mapping[str, Mapping[str, float]] | None = None,
    *,
    unit: str = "MB",
) -> Figure:
    """Memory over a step, a panel for each recording, all on one scale of bytes.

    Forward, backward and optimizer are shaded, where they were recorded.

    Args:
        recorded: title → curve.
        heights: title → name → bytes: dashed lines, such as what was predicted.
        unit: "GB", "MB", "kB" or "bytes".
    """
    scale, heights = UNITS[unit], heights or {}
    size = 7.2, 0.9 + 1.9 * len(recorded)
    figure, grid = style.subplots(len(recorded), 1, size=size, sharey=True)
    names = list(dict.fromkeys(name for own in heights.values() for name in own))
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        _draw_curve(axes, one, scale)
        for name, nbytes in heights.get(title, {}).items():
            color = COLORS[3 + names.index(name) % 4]
            axes.axhline(nbytes / scale, color=color, linestyle="--", linewidth=1.3, label=name)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylabel(unit)
    grid[-1, 0].set_xlabel("milliseconds")
    grid[0, 0].set_ylim(bottom=0)
    style.legend_below(figure, 3)
    return figure


def _draw_curve(axes: Axes, one: Recorded, scale: float) -> None:
    when, held = zip(*((1e3 * t, nbytes / scale) for t, nbytes in one.points), strict=True)
    for span in one.spans:
        if span.lane == COMPUTE and span.name in PHASES:
            color = COLORS[PHASES[span.name]]
            axes.axvspan(
                1e3 * span.start, 1e3 * span.end, color=color, alpha=0.14, lw=0, label=span.name
            )
    axes.fill_between(when, held, step="post", color=GREY, alpha=0.3, linewidth=0)
    axes.step(when, held, where="post", color=COLORS[0], linewidth=1)
    style.chart(axes, labelsize=8)


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
