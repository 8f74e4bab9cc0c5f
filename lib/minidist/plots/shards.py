"""A picture of who holds what: the slices of each part of the state, on every rank, by and by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.draw import COLORS

Held = Mapping[str, Sequence[Sequence[bool]]]  # part → of each rank → of each slice: is it there?
GAP = 0.8  # between two parts, in widths of a slice


def holdings(rows: Mapping[str, Mapping[str, Held]]) -> Figure:
    """What every rank holds: a row of panels for each strategy, a panel for each moment.

    In a panel a line is a rank, and a strip is a part of the state, such as the weights, cut into
    its slices. A slice that is held is filled with its number's colour; one that is not is blank.

    Args:
        rows: strategy → moment → part → of each rank → of each slice: whether it is held. All
            strategies have the same moments, and all moments the same parts, ranks and slices.

    Raises:
        ValueError: a strategy lacks a moment that another has, or a moment a part.
    """
    moments = list(next(iter(rows.values())))
    parts = list(next(iter(rows.values()))[moments[0]])
    for strategy, panels in rows.items():
        _check(f"{strategy}: moments", list(panels), moments)
        for moment, held in panels.items():
            _check(f"{strategy}, {moment}: parts", list(held), parts)
    ranks = len(next(iter(rows.values()))[moments[0]][parts[0]])
    figure, grid = plt.subplots(
        len(rows),
        len(moments),
        figsize=(7.2, len(rows) * (0.17 * ranks + 0.22) + 0.4),
        squeeze=False,
        facecolor="none",
        layout="constrained",
        gridspec_kw={"wspace": 0.12},
    )
    for line, (strategy, panels) in zip(grid, rows.items(), strict=True):
        for axes, held in zip(line, panels.values(), strict=True):
            _panel(axes, held)
        line[0].set_ylabel(strategy, fontsize=9)
    for axes, moment in zip(grid[0], moments, strict=True):
        axes.set_title(moment, fontsize=9)
        axes.tick_params(labeltop=True)
    for axes in grid[:, 0]:
        axes.tick_params(labelleft=True)
    return figure


def _check(what: str, got: list[str], expected: list[str]) -> None:
    if got != expected:
        raise ValueError(f"{what}: expected {expected}, got {got}")


def _panel(axes: Axes, held: Held) -> None:
    left, middles, ranks = 0.0, [], 0
    for lines in held.values():
        ranks, slices = len(lines), len(lines[0])
        for rank, own in enumerate(lines):
            for number, there in enumerate(own):
                _slice(axes, left + number, rank, number, there)
        middles.append(left + slices / 2)
        left += slices + GAP
    axes.set_xlim(-0.1, left - GAP + 0.1)
    axes.set_ylim(ranks + 0.05, -0.05)
    axes.set_xticks(middles, list(held))
    axes.set_yticks(np.arange(ranks) + 0.5, [str(rank) for rank in range(ranks)])
    axes.tick_params(length=0, labelsize=6, labelbottom=False, labelleft=False, pad=1)
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)


def _slice(axes: Axes, x: float, rank: int, number: int, there: bool) -> None:
    color = to_rgba(COLORS[number % 6], 0.55)  # the seventh is the grey of the lines
    edge = COLORS[6]
    box = Rectangle((x, rank), 1, 0.86, fill=there, facecolor=color, edgecolor=edge, linewidth=0.4)
    axes.add_patch(box)
    if there:
        axes.text(x + 0.5, rank + 0.46, str(number), ha="center", va="center", fontsize=5.5)
