"""What a batch takes on each rank when its samples have unequal lengths and are padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART

Batches = Sequence[Sequence[int]]  # of each rank, the lengths of its samples


def batch_memory(panels: Mapping[str, Batches], room: int) -> Figure:
    """A bar for each rank: tokens, then padding up to the longest sample; a line where memory ends.

    Args:
        panels: title → the batch of each rank.
        room: tokens for which there is memory.
    """
    ranks = max(map(len, panels.values()))
    height = len(panels) * (0.24 * ranks + 0.4) + 0.3
    figure, grid = style.subplots(len(panels), 1, size=(3.4, height), sharex=True)
    for axes, (title, batches) in zip(grid[:, 0], panels.items(), strict=True):
        _panel(axes, batches, room)
        axes.set_title(title, fontsize=9, loc="left")
    widest = max(max(own) * len(own) for batches in panels.values() for own in batches)
    grid[-1, 0].set_xlim(0, 1.4 * max(widest, room) / 1e3)  # room for the words
    grid[-1, 0].set_xlabel("thousand tokens, padding included", fontsize=9)
    return figure


def _panel(axes: Axes, batches: Batches, room: int) -> None:
    for rank, lengths in enumerate(batches):
        tokens, padded = sum(lengths) / 1e3, max(lengths) * len(lengths) / 1e3
        bar: dict[str, Any] = {"height": 0.76, "linewidth": 0.8}
        color = PART["activations"], 0.45
        style.outline(axes, 0, rank + 0.12, GREY, width=tokens, facecolor=color, **bar)
        style.outline(axes, tokens, rank + 0.12, GREY, width=padded - tokens, **bar)
        axes.patches[-1].set(linestyle="--")
        if padded * 1e3 > room:
            text: dict[str, Any] = {"fontsize": 8, "va": "center", "color": COLORS[1]}
            axes.text(padded + 0.2, rank + 0.52, "out of memory", **text)
    axes.axvline(room / 1e3, color=COLORS[1], linestyle="--", linewidth=1.5)
    style.chart(axes, labelsize=8)
    style.name_rows(axes, (f"rank {rank}" for rank in range(len(batches))))
    axes.tick_params(axis="y", length=0)
