"""Ranks with unequal numbers of batches, in step: who waits for whom, and what `join` does."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, PHASE

BATCH, TALK = 1.0, 0.35  # durations of a batch and of its all-reduce


def uneven(batches: Sequence[int]) -> Figure:
    """Two timelines of the same ranks: as they are, and under `join`.

    Args:
        batches: how many batches each rank has.
    """
    figure, grid = style.subplots(2, 1, size=(3.7, 0.86 * len(batches) + 1.5), sharex=True)
    _panel(grid[0, 0], batches, joined=False)
    _panel(grid[1, 0], batches, joined=True)
    grid[1, 0].set_xlabel("time", fontsize=9, loc="right")
    return figure


def _panel(axes: Axes, batches: Sequence[int], *, joined: bool) -> None:
    steps = max(batches) if joined else min(batches) + 1
    for step in range(steps):
        left = step * (BATCH + TALK)
        for rank, own in enumerate(batches):
            if step < own:
                color = PHASE["forward"], 0.5
                _box(axes, left, rank, BATCH, f"{step + 1}", color)
            elif joined:
                _box(axes, left, rank, BATCH, "zeros")
        if joined or step < min(batches):
            talk = PHASE["reduce-scatter"], 0.35
            for rank in range(len(batches)):
                _box(axes, left + BATCH, rank, TALK, "Σ", talk)
    if not joined:
        _stuck(axes, batches)
    axes.set_title("with join()" if joined else "without", fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_xlim(-0.05, max(batches) * (BATCH + TALK) + 0.05)
    style.name_rows(axes, (f"rank {rank}" for rank in range(len(batches))))
    style.table(axes, labelsize=9)


def _stuck(axes: Axes, batches: Sequence[int]) -> None:
    """Ranks that have another batch wait for the gradients of those that have none."""
    end = min(batches) * (BATCH + TALK)
    for rank, own in enumerate(batches):
        if own > min(batches):
            style.write(axes, end + BATCH + 0.15, rank + 0.5, "waits …")
            axes.texts[-1].set_horizontalalignment("left")
        else:
            style.write(axes, end + 0.15, rank + 0.5, "has ended")
            axes.texts[-1].set_horizontalalignment("left")


def _box(
    axes: Axes, left: float, rank: int, width: float, text: str,
    color: tuple[str, float] | None = None,
) -> None:  # fmt: skip
    style.outline(
        axes, left, rank + 0.12, GREY, width=width, height=0.76, linewidth=0.8, facecolor=color
    )
    style.write(axes, left + width / 2, rank + 0.52, text)
