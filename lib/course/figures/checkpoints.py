"""Checkpoints: what happens while one is made, and how often to make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PHASE

STEP, COPY, INDEX = 1.0, 0.85, 0.9  # lengths, in steps
WRITES = (2.6, 3.1, 2.8, 3.4)  # how long each rank writes
KILLED = COLORS[1]


def async_save(before: str = "step-4", after: str = "step-8") -> Figure:
    """A save during training: who does what, what the folder has, and what a restart finds."""
    figure, grid = style.subplots(size=(3.6, 2.75))
    axes: Axes = grid[0, 0]
    copied, end = STEP + COPY, 8.85
    written = copied + max(WRITES)
    renamed = written + INDEX
    starts = [0, *(copied + step * STEP for step in range(7))]
    for number, start in enumerate(starts, 8):
        _bar(axes, 0, start, min(STEP, end - start) - 0.05, PHASE["backward"], f"{number}")
    _bar(axes, 0, STEP, COPY - 0.05, PHASE["optimizer"], "copy")
    for rank, took in enumerate(WRITES):
        _bar(axes, 1 + rank, copied, took, PHASE["all-gather"], "write, sync")
    _bar(axes, 1, written, INDEX, PHASE["optimizer"], "index")
    rows = ["training", *(f"rank {rank}" for rank in range(len(WRITES)))]
    for row, name in enumerate(rows):
        axes.text(-0.12, row + 0.4, name, ha="right", va="center", fontsize=8)
    low = len(rows) + 0.25
    axes.text(-0.12, low + 0.4, "folder", ha="right", va="center", fontsize=8)
    texts = (
        (0, before),
        (copied, f"{before}, {after}.unfinished"),
        (renamed, f"{before}, {after}"),
    )
    for start, text in texts:
        axes.text(start + 0.06, low + 0.4, text, va="center", fontsize=8)
        axes.plot((start, start), (low, low + 0.8), color=GREY, lw=0.9)
    axes.plot((renamed, renamed), (0, low + 1.75), color=KILLED, lw=1.3, ls="--")
    said: dict[str, Any] = {"fontsize": 8, "va": "center"}
    text = f"a killed run resumes at  ← {before}"
    axes.text(renamed - 0.1, low + 1.4, text, ha="right", **said)
    axes.text(renamed + 0.1, low + 1.4, f"{after} →", **said)
    axes.text(renamed, -0.1, "rename", ha="center", va="bottom", fontsize=8, color=KILLED)
    axes.set_xlim(-1.35, end)
    axes.set_ylim(low + 1.8, -0.6)
    axes.set_axis_off()
    return figure


def _bar(axes: Axes, row: int, start: float, length: float, color: str, text: str) -> None:
    box: dict[str, Any] = {"width": length, "height": 0.8, "facecolor": (color, 0.3)}
    style.outline(axes, start, row, color, linewidth=0.8, **box)
    style.write(axes, start + length / 2, row + 0.4, text, fontsize=8)


def time_lost(
    intervals: Sequence[float],
    shares: Sequence[tuple[float, float]],
    simulated: Mapping[float, float],
    best: tuple[float, float],
) -> Figure:
    """Percent of the time lost over the interval between saves: its two parts, and their sum.

    Args:
        intervals: minutes of training between saves, at which the model is drawn.
        shares: for each, what is lost to saving and to what is done again.
        simulated: interval → share that a simulation has lost in all.
        best: the interval to mark, and the share that it loses.
    """
    figure, grid = style.subplots(size=(3.6, 2.9))
    axes: Axes = grid[0, 0]
    minutes, total = intervals, [saving + again for saving, again in shares]
    parts = {
        "saving": ([saving for saving, _ in shares], COLORS[2], "--"),
        "restarts, repeated work": ([again for _, again in shares], COLORS[1], ":"),
        "total": (total, COLORS[0], "-"),
    }
    for values, color, dashes in parts.values():
        axes.plot(minutes, [100 * value for value in values], color=color, ls=dashes, lw=1.6)
    points = [100 * share for share in simulated.values()]
    axes.plot([*simulated], points, "o", color=COLORS[0], ms=4, mfc="none")
    axes.plot(best[0], 100 * best[1], "*", color=GREY, ms=11)
    axes.axvline(best[0], color=GREY, lw=0.9, ls=":")
    axes.set(xscale="log", xlabel="minutes of training between saves", ylabel="% of the time")
    axes.set_ylim(0, 100 * max(total))
    axes.xaxis.set_major_formatter("{x:g}")
    near: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    left, right = len(shares) // 6, len(shares) * 5 // 6
    for name, place, shift in (
        ("saving", left, (-34, -16)),
        ("restarts, repeated work", right, (-52, -62)),
        ("total", left, (8, 6)),
    ):
        values, color, _ = parts[name]
        axes.annotate(name, (minutes[place], 100 * values[place]), shift, color=color, **near)
    text = f"best: {best[0]:.0f} min"
    axes.annotate(text, (best[0], axes.get_ylim()[1]), (5, -12), **near)
    style.chart(axes, labelsize=8)
    return figure
