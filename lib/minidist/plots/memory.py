"""A picture of memory: how it goes up and down over a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY
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
