"""Pictures of memory: parts of it in bars, and how it goes up and down over a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots.bars import stacked
from minidist.plots.draw import COLORS
from minidist.profiler.spans import COMPUTE, Span

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
PHASES = {"forward": 0, "backward": 1, "optimizer": 2}  # name → colour, as on a timeline


class Recorded(Protocol):
    """What `curve` draws, such as a `minidist.memory.meter.Curve`."""

    @property
    def points(self) -> list[tuple[float, int]]:
        """(seconds, bytes), after each change."""

    @property
    def spans(self) -> list[Span]:
        """What ran when, in the same seconds."""


def curve(
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
    figure, grid = plt.subplots(
        len(recorded),
        1,
        figsize=(7.2, 0.9 + 1.9 * len(recorded)),
        squeeze=False,
        sharey=True,
        facecolor="none",
        layout="constrained",
    )
    names = list(dict.fromkeys(name for own in (heights or {}).values() for name in own))
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        _panel(axes, one, scale)
        for name, nbytes in (heights or {}).get(title, {}).items():
            color = COLORS[3 + names.index(name) % 4]
            axes.axhline(nbytes / scale, color=color, linestyle="--", linewidth=1.3, label=name)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylabel(unit)
    grid[-1, 0].set_xlabel("milliseconds")
    grid[0, 0].set_ylim(bottom=0)
    once: dict[str, Artist] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        once |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(once.values()),
        list(once),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    return figure


def _panel(axes: Axes, one: Recorded, scale: float) -> None:
    when, held = zip(*((1e3 * t, nbytes / scale) for t, nbytes in one.points), strict=True)
    for span in one.spans:
        if span.lane == COMPUTE and span.name in PHASES:
            color = COLORS[PHASES[span.name]]
            axes.axvspan(
                1e3 * span.start, 1e3 * span.end, color=color, alpha=0.14, lw=0, label=span.name
            )
    axes.fill_between(when, held, step="post", color=COLORS[6], alpha=0.3, linewidth=0)
    axes.step(when, held, where="post", color=COLORS[0], linewidth=1)
    axes.set_facecolor("none")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def bars(
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
    line = (limit[0], limit[1] / scale) if limit else None
    figure = stacked([panel], y_label=unit, limit=line)
    if measured:
        heights = [nbytes / scale for nbytes in measured.values()]
        figure.axes[0].plot(
            list(measured),
            heights,
            linestyle="none",
            marker="D",
            markersize=7,
            markerfacecolor="white",
            markeredgecolor="black",
            label=mark,
        )
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legends[0].remove()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False
        )
    return figure


def _scale(unit: str, drawn: list[str]) -> float:
    if unit not in UNITS or not drawn:
        known = ", ".join(UNITS)
        raise ValueError(f"expected something to draw, in {known}; got {drawn}, in {unit!r}")
    return UNITS[unit]
