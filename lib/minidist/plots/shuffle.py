"""Pictures of a shuffle, and of who carries how much. See `draw` for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.draw import COLORS

__all__ = ["bars", "boxes"]

Pairs = Sequence[tuple[Any, Any]]


def boxes(mapped: Sequence[Sequence[Pairs]], parts: Sequence[Mapping[Any, Any]]) -> Figure:
    """A shuffle as a table: a map task writes a row, a reducer reads a column.

    Args:
        mapped: mapped[m][r] are the pairs that map task m has for reducer r.
        parts: parts[r] is what reducer r makes of them.
    """
    maps, reducers = len(mapped), len(parts)
    figure, axes = plt.subplots(figsize=(1.9 * reducers + 1.2, 0.62 * maps + 1.3), facecolor="none")
    for m, row in enumerate(mapped):
        for r, pairs in enumerate(row):
            _box(axes, r, m, pairs, r, 0.16)
    for r, part in enumerate(parts):
        _box(axes, r, maps + 0.45, list(part.items()), r, 0.42)
        axes.annotate(
            "", (r + 0.48, maps + 0.43), (r + 0.48, maps - 0.02),
            arrowprops={"arrowstyle": "->", "color": COLORS[6]},
        )  # fmt: skip
    axes.set_xlim(-0.02, reducers)
    axes.set_ylim(maps + 1.45, -0.05)
    axes.set_xticks(np.arange(reducers) + 0.48, [f"reducer {r}" for r in range(reducers)])
    rows = [*(np.arange(maps) + 0.45), maps + 0.9]
    axes.set_yticks(rows, [*(f"map task {m}" for m in range(maps)), "result"])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    figure.tight_layout()
    return figure


def _box(axes: Axes, x: float, y: float, pairs: Pairs, color: int, alpha: float) -> None:
    fill, strength = COLORS[color % 7], alpha if pairs else 0.0
    axes.add_patch(Rectangle((x, y), 0.96, 0.9, facecolor=fill, alpha=strength, linewidth=0))
    axes.add_patch(Rectangle((x, y), 0.96, 0.9, fill=False, edgecolor=COLORS[6], linewidth=0.5))
    texts = [f"{key} {value}" for key, value in pairs]
    middle = -(-len(texts) // 2) if len(texts) > 2 else len(texts)
    lines = [",  ".join(line) for line in (texts[:middle], texts[middle:]) if line]
    axes.text(x + 0.48, y + 0.45, "\n".join(lines), ha="center", va="center", fontsize=7.5)


def bars(groups: Mapping[str, Sequence[float]], names: Sequence[str], *, y_label: str) -> Figure:
    """One bar for each name, side by side for each group."""
    figure, axes = plt.subplots(figsize=(6.4, 3.2), facecolor="none", layout="constrained")
    width = 0.8 / len(groups)
    for number, (label, heights) in enumerate(groups.items()):
        left = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(left, heights, 0.92 * width, label=label, color=COLORS[number])
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(y_label)
    axes.set_facecolor("none")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(groups), fontsize=8, frameon=False)
    return figure
