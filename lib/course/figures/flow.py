"""MapReduce from top to bottom: map tasks, the shuffle between, reducers below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK

WIDE, GAP = 1.0, 0.1  # of a map task, and between two
SLOT, BOX = 0.26, 1.1  # heights of a slot for a reducer, and of a task
MAPPED, REDUCED = 1.4, 2.85  # where the slots begin, and the reducers


def map_shuffle_reduce(
    inputs: Sequence[str],
    boxes: Sequence[Sequence[int]],
    parts: Sequence[Mapping[str, Any]],
) -> Figure:
    """Each map task with its input and its boxes, a line from each box to its reducer.

    Args:
        inputs: the text of each map task.
        boxes: boxes[m][r] is how many pairs map task m has for reducer r; an empty box has no line.
        parts: parts[r] is what reducer r makes of them.
    """
    figure, grid = style.subplots(size=(3.45, 3.7))
    axes: Axes = grid[0, 0]
    across = len(inputs) * (WIDE + GAP) - GAP
    wide = (across - (len(parts) - 1) * 2 * GAP) / len(parts)
    for r, part in enumerate(parts):
        x = r * (wide + 2 * GAP)
        _box(axes, x, REDUCED, wide, 1.15, RANK[r])
        style.write(axes, x + wide / 2, REDUCED + 0.17, f"reducer {r}")
        style.write(axes, x + wide / 2, REDUCED + 0.66, _words(part))
    for m, (text, row) in enumerate(zip(inputs, boxes, strict=True)):
        left = m * (WIDE + GAP)
        style.outline(axes, left, 0.2, GREY, width=WIDE, height=BOX, linewidth=0.8)
        style.write(axes, left + WIDE / 2, 0.37, f"task {m}")
        style.write(axes, left + WIDE / 2, 0.84, "\n".join(textwrap.wrap(text, 9)))
        for r, count in enumerate(row):
            x, width = left + r * WIDE / len(row), WIDE / len(row)
            _box(axes, x, MAPPED, width, SLOT, RANK[r])
            style.write(axes, x + width / 2, MAPPED + SLOT / 2 + 0.01, str(count))
            if count:
                ends = x + width / 2, r * (wide + 2 * GAP) + wide * (m + 1) / (len(inputs) + 1)
                heights = MAPPED + SLOT, REDUCED
                axes.plot(ends, heights, color=RANK[r], linewidth=0.7 + 0.5 * count, alpha=0.8)
    for y, name in ((0.75, "map"), ((MAPPED + SLOT + REDUCED) / 2, "shuffle"), (3.42, "reduce")):
        axes.text(-0.12, y, name, ha="right", va="center", fontsize=9, fontweight="bold")
    axes.set_xlim(-0.85, across + 0.05)
    axes.set_ylim(REDUCED + 1.2, 0.1)
    axes.set_axis_off()
    return figure


def _words(part: Mapping[str, Any]) -> str:
    """What a reducer has made, with no break between a key and its value."""
    pairs = ", ".join(f"{key}_{value}" for key, value in part.items())
    return "\n".join(textwrap.wrap(pairs, 13)).replace("_", " ")


def _box(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    style.fill(axes, x, y, color, width=width, height=height, alpha=0.3)
    style.outline(axes, x, y, width=width, height=height)
