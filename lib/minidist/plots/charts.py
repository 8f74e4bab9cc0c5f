"""Line charts of what was measured and predicted: over any quantity, and memory over a step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS
from minidist.profiler.spans import COMPUTE

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
PHASES = {"forward": 0, "backward": 1, "optimizer": 2}  # name → colour, as on a timeline


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    predicted: bool = False


def curves(
    data: Iterable[Curve], *, x_label: str, y_label: str, x_base: int = 10, y_log: bool = True
) -> Figure:
    """Measured and predicted figures over a logarithmic x axis."""
    figure, grid = style.subplots(size=(6.4, 4.4))
    axes: Axes = grid[0, 0]
    for curve in data:
        color, dashes = COLORS[curve.color], "--" if curve.predicted else "-"
        (line,) = axes.plot(curve.x, curve.y, dashes, color=color, lw=1.4, label=curve.label)
        if not curve.predicted:
            line.set(marker=MARKERS[curve.color], markersize=5)
    axes.grid(alpha=0.3)
    axes.set_xscale("log", base=x_base)
    if y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure


def memory_curve(
    recorded: Mapping[str, Any],
    heights: Mapping[str, Mapping[str, float]] | None = None,
    *,
    unit: str = "MB",
) -> Figure:
    """Memory over a step, a panel for each recording, all on one scale of bytes.

    Forward, backward and optimizer are shaded, where they were recorded.

    Args:
        recorded: title → curve, such as one of `minidist.memory.meter`.
        heights: title → name → bytes: dashed lines, such as what was predicted.
        unit: "GB", "MB", "kB" or "bytes".
    """
    scale, heights = UNITS[unit], heights or {}
    size = 7.2, 0.9 + 1.9 * len(recorded)
    figure, grid = style.subplots(len(recorded), 1, size=size, sharey=True)
    names = list(dict.fromkeys(name for own in heights.values() for name in own))
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        for span in one.spans:
            if span.lane == COMPUTE and span.name in PHASES:
                phase = 1e3 * span.start, 1e3 * span.end
                color = COLORS[PHASES[span.name]]
                axes.axvspan(*phase, color=color, alpha=0.14, lw=0, label=span.name)
        when, held = zip(*((1e3 * t, nbytes / scale) for t, nbytes in one.points), strict=True)
        axes.fill_between(when, held, step="post", color=GREY, alpha=0.3, linewidth=0)
        axes.step(when, held, where="post", color=COLORS[0], linewidth=1)
        for name, nbytes in heights.get(title, {}).items():
            color = COLORS[3 + names.index(name) % 4]
            axes.axhline(nbytes / scale, color=color, linestyle="--", linewidth=1.3, label=name)
        style.chart(axes, labelsize=8)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylabel(unit)
    grid[-1, 0].set_xlabel("milliseconds")
    grid[0, 0].set_ylim(bottom=0)
    style.legend_below(figure, 3)
    return figure
