"""The picture of a unit's life: what every rank holds of it after each event of a step."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH

Holding = Mapping[str, str]  # part of the state → "whole" or "shard"; a part may be missing
CELL, APART, BAR = 0.2, 0.3, 0.34  # width of a number, gap between ranks, height of a strip
HIGH = 1.25  # of a row, in heights of a cell pair
COLLECTIVES = "gather", "reduce-scatter"


def unit_life(phases: Mapping[str, Mapping[str, Holding]], ranks: int = 4) -> Figure:
    """Time goes down, ranks stand side by side, and bars at the right count one rank's numbers.

    The unit has one number for each rank, so a shard is one cell and the whole is `ranks` cells.

    Args:
        phases: phase → event → what a rank holds after it.
        ranks: how many ranks share the unit.
    """
    events = [(phase, name, held) for phase, all_ in phases.items() for name, held in all_.items()]
    figure, grid = style.subplots(size=(4.8, 0.4 * len(events) + 0.6))
    axes: Axes = grid[0, 0]
    wide = ranks * CELL + APART
    bars = ranks * wide + 0.1
    for row, (_, name, held) in enumerate(events):
        for rank in range(ranks):
            _holding(axes, rank * wide, row * HIGH, held, rank, ranks)
        if name in COLLECTIVES:  # a line joins the ranks
            y = row * HIGH + BAR / 2 + (BAR + 0.08) * (name == "reduce-scatter")
            for rank in range(1, ranks):
                axes.plot([rank * wide - APART, rank * wide], [y, y], color=GREY, lw=2)
        _amount(axes, bars, row * HIGH, held, ranks)
    _names(axes, phases)
    for rank in range(ranks):
        middle = rank * wide + ranks * CELL / 2
        axes.text(middle, -0.32, f"rank {rank}", ha="center", fontsize=8)
    axes.text(bars, -0.32, "numbers held", fontsize=8)
    axes.set_xlim(-1.8, bars + (2 * ranks + 1) * 0.11 + 0.25)
    axes.set_ylim(len(events) * HIGH - 0.2, -0.75)
    axes.set_axis_off()
    return figure


def _holding(axes: Axes, left: float, top: float, held: Holding, rank: int, ranks: int) -> None:
    """A rank's weights, and its gradients below them; what is not there is an empty outline."""
    for line, part in enumerate(("parameters", "gradients")):
        for number in range(ranks):
            there = held.get(part) == "whole" or (part in held and number == rank)
            corner = left + number * CELL, top + line * (BAR + 0.08)
            box = Rectangle(corner, CELL, BAR, linewidth=0.5, edgecolor=GREY, fill=there)
            if there:
                box.set(facecolor=PART[part], hatch=2 * PART_HATCH[part], edgecolor="black")
            axes.add_patch(box)


def _amount(axes: Axes, left: float, top: float, held: Holding, ranks: int) -> None:
    start, total = left, 0
    for part, how in held.items():
        count = {"shard": 1, "whole": ranks + (part == "parameters")}[how]  # the shard stays
        total += count
        box = Rectangle((start, top + 0.2), 0.11 * count, BAR, linewidth=0.5, edgecolor=GREY)
        box.set(facecolor=PART[part], hatch=2 * PART_HATCH[part], edgecolor="black")
        axes.add_patch(box)
        start += 0.11 * count
    axes.text(start + 0.06, top + 0.4, str(total), va="center", fontsize=8)


def _names(axes: Axes, phases: Mapping[str, Mapping[str, Holding]]) -> None:
    row = 0
    for phase, events in phases.items():
        top, bottom = row * HIGH - 0.05, (row + len(events)) * HIGH - 0.4
        axes.plot([-1.5] * 2, [top, bottom], color=GREY, lw=1)
        middle = (top + bottom) / 2
        axes.text(-1.64, middle, phase, rotation=90, ha="center", va="center", fontsize=8)
        for name in events:
            axes.text(-0.12, row * HIGH + 0.38, name, ha="right", va="center", fontsize=8)
            row += 1
