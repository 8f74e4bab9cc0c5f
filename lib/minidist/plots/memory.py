"""Pictures of memory: stacked bars of its parts, and how it goes up and down over a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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

    Raises:
        ValueError: there is no recording, or no such unit.
    """
    scale = _scale(unit, list(recorded))
    size = 7.2, 0.9 + 1.9 * len(recorded)
    figure, grid = style.subplots(len(recorded), 1, size=size, sharey=True)
    names = list(dict.fromkeys(name for own in (heights or {}).values() for name in own))
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        _draw_curve(axes, one, scale)
        for name, nbytes in (heights or {}).get(title, {}).items():
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
) -> Figure:
    """Bars stacked of named parts, in panels side by side that each have a scale of their own.

    Args:
        panels: of each panel: bar → part → amount. A bar may lack parts.
        y_label: what is counted, with its unit.
        limit: name and height of a line across all panels, such as the memory of a GPU.
    """
    figure = _stack(panels, y_label, limit)
    style.legend_below(figure, 3)
    return figure


def memory_bars(
    parts: Mapping[str, Mapping[str, float]],
    *,
    unit: str = "GB",
    limit: tuple[str, float] | None = None,
    measured: Mapping[str, float] | None = None,
    mark: str = "measured",
) -> Figure:
    """A bar for each strategy, stacked of the parts of its memory.

    Args:
        parts: strategy → part → bytes; `minidist.memory.predict.RankBytes.parts` has them.
        unit: "GB", "MB", "kB" or "bytes".
        limit: name and bytes of a line across, such as the memory of a GPU.
        measured: strategy → bytes, drawn as a mark on its bar.
        mark: what the marks are called.

    Raises:
        ValueError: there is no bar, or no such unit.
    """
    scale = _scale(unit, list(parts))
    panel = {name: {part: n / scale for part, n in own.items() if n} for name, own in parts.items()}
    figure = _stack([panel], unit, (limit[0], limit[1] / scale) if limit else None)
    if measured:
        figure.axes[0].plot(
            list(measured),
            [nbytes / scale for nbytes in measured.values()],
            linestyle="none",
            marker="D",
            markersize=7,
            markerfacecolor="white",
            markeredgecolor="black",
            label=mark,
        )
    style.legend_below(figure, 3)
    return figure


def _stack(
    panels: Sequence[Mapping[str, Mapping[str, float]]],
    y_label: str,
    limit: tuple[str, float] | None,
) -> Figure:
    parts = list(dict.fromkeys(part for bars in panels for bar in bars.values() for part in bar))
    widths = [len(bars) for bars in panels]
    figure, grid = style.subplots(1, len(panels), size=(7.2, 3.6), width_ratios=widths)
    for axes, bars in zip(grid.flat, panels, strict=True):
        bottom = [0.0] * len(bars)
        for number, part in enumerate(parts):
            heights = [bar.get(part, 0.0) for bar in bars.values()]
            axes.bar(
                list(bars),
                heights,
                0.62,
                bottom,
                label=part,
                facecolor=COLORS[number],
                edgecolor="black",
                hatch=HATCHES[number],
                linewidth=0.5,
                alpha=0.8,
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        if limit:
            axes.axhline(limit[1], color="black", linestyle="--", linewidth=1.2, label=limit[0])
        style.chart(axes)
        axes.tick_params(axis="x", labelsize=8, length=0)
    grid[0, 0].set_ylabel(y_label)
    return figure


def _scale(unit: str, drawn: list[str]) -> float:
    if unit not in UNITS or not drawn:
        known = ", ".join(UNITS)
        raise ValueError(f"expected something to draw, in {known}; got {drawn}, in {unit!r}")
    return UNITS[unit]
