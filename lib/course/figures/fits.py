"""How many GPUs a model's training state would fill: one square for the memory of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import PART, PART_HATCH

SIDE, GAP = 0.86, 0.55  # of a square, and between models


def filled(models: Mapping[str, Mapping[str, float]], capacity: float, across: int = 7) -> Figure:
    """Fill squares, each the memory of one GPU, with the parts of each model's state.

    Args:
        models: model → part of the state, as `style.PART` names it → its amount.
        capacity: the memory of one GPU, in the same unit.
        across: squares in a row.
    """
    rows = {name: math.ceil(sum(parts.values()) / capacity) for name, parts in models.items()}
    height = sum(-(-count // across) + GAP for count in rows.values())
    figure, grid = style.subplots(size=(3.0, 0.33 * height + 0.35))
    axes: Axes = grid[0, 0]
    top, names, middles = 0.0, [], []
    for name, parts in models.items():
        at, whole = 0.0, sum(parts.values()) / capacity
        for part, amount in parts.items():
            _fill(axes, top, at, at + amount / capacity, part, across)
            at += amount / capacity
        for square in range(rows[name]):
            row, column = divmod(square, across)
            style.outline(axes, column, top + row, width=SIDE, height=SIDE, linewidth=0.8)
        lines = -(-rows[name] // across)
        names.append(f"{name}\n{whole:.2g} GPUs" if whole > 1 else f"{name}\n{whole:.2f} GPU")
        middles.append(top + (lines - 1 + SIDE) / 2)
        top += lines + GAP
    axes.set_yticks(middles, names)
    axes.set_xticks([])
    axes.set(xlim=(-0.1, across), ylim=(top - GAP, -0.1), aspect="equal")
    style.table(axes)
    style.legend_below(figure, 2)
    return figure


def _fill(axes: Axes, top: float, start: float, end: float, part: str, across: int) -> None:
    """Fill from `start` to `end`, in squares, going on in the next one where one is full."""
    while start < end - 1e-9:
        square = math.floor(start + 1e-9)
        until = min(end, square + 1)
        row, column = divmod(square, across)
        look: dict[str, Any] = {"color": PART[part], "hatch": PART_HATCH[part], "label": part}
        axes.bar(
            column + (start - square) * SIDE,
            SIDE,
            (until - start) * SIDE,
            top + row,
            align="edge",
            alpha=0.75,
            linewidth=0,
            **look,
        )
        start = until
