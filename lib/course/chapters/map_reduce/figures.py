"""A picture of MapReduce: map, shuffle and reduce."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from course.drawing.sketches import names_left, sketch
from minidist.plots.style import RANK, box

WIDE, GAP = 1.0, 0.1  # a map task, and the gap between two
SLOT, BOX = 0.26, 1.1  # heights of a slot for a reducer, and of a task
MAPPED, REDUCED = 1.4, 2.85  # tops of the slots and the reducers


def map_shuffle_reduce(
    inputs: Sequence[str], boxes: Sequence[Sequence[int]], parts: Sequence[Mapping[str, Any]]
) -> Figure:
    """Each map task with its text, a line from each of its boxes to a reducer.

    `boxes[m][r]`: how many pairs map task m has for reducer r, which makes `parts[r]` of them.
    """
    across = len(inputs) * (WIDE + GAP) - GAP
    figure, axes = sketch((3.45, 3.7), (-0.85, across + 0.05), (REDUCED + 1.2, 0.1))
    wide = (across - (len(parts) - 1) * 2 * GAP) / len(parts)
    for r, part in enumerate(parts):
        x = r * (wide + 2 * GAP)
        text = f"reducer {r}\n\n{_words(part)}"
        box(axes, x, REDUCED, wide, 1.15, text, face=(RANK[r], 0.3), linewidth=0.5)
    for m, (text, row) in enumerate(zip(inputs, boxes, strict=True)):
        left = m * (WIDE + GAP)
        lines = textwrap.wrap(text, 9)
        box(axes, left, 0.2, WIDE, BOX, "\n".join([f"task {m}", "", *lines]))
        for r, count in enumerate(row):
            x, width = left + r * WIDE / len(row), WIDE / len(row)
            box(axes, x, MAPPED, width, SLOT, str(count), face=(RANK[r], 0.3), linewidth=0.5)
            if count:
                ends = x + width / 2, r * (wide + 2 * GAP) + wide * (m + 1) / (len(inputs) + 1)
                heights = MAPPED + SLOT, REDUCED
                (line,) = axes.plot(ends, heights, color=RANK[r], linewidth=0.7 + 0.5 * count)
                line.set(alpha=0.8, solid_capstyle="butt")
    middle = (MAPPED + SLOT + REDUCED) / 2
    names_left(axes, -0.12, {0.75: "map", middle: "shuffle", 3.42: "reduce"})
    return figure


def _words(part: Mapping[str, Any]) -> str:
    """A reducer's output, with no break between a key and its value."""
    pairs = ", ".join(f"{key}_{value}" for key, value in part.items())
    return "\n".join(textwrap.wrap(pairs, 13)).replace("_", " ")
