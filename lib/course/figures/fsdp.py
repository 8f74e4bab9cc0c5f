"""Pictures of FSDP: how units are cut into shards, how one lives, and hybrid sharding."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import box, sketch, stacked
from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.plots import style
from minidist.plots.style import GREY, LABEL, PART, PART_HATCH, RANK


def cuts(
    shapes: Mapping[str, Sequence[int]], ways: Mapping[str, Sequence[Sequence[str]]]
) -> Figure:
    """A panel for each way: the parameters, coloured by who keeps what, and each rank's message.

    `ways`: title → of each rank, the elements that it sends, as `elements_kept` names them.
    """
    tallest = max(shape[0] for shape in shapes.values())
    figure, panels = stacked(ways, (3.75, len(ways) * (0.25 * (tallest + 1) + 0.3)))
    for axes, ranks in panels:
        left = _parameters(axes, shapes, ranks) + 1.2
        for rank, elements in enumerate(ranks):
            for row, element in enumerate(elements):
                _cell(axes, left, row, element, rank)
            axes.text(left + 0.5, -0.25, f"rank {rank}", ha="center", fontsize=LABEL)
            left += 1.8
        axes.set(xlim=(-0.1, left), ylim=(tallest + 0.1, -0.9))
        axes.set_axis_off()
    return figure


def _parameters(
    axes: Axes, shapes: Mapping[str, Sequence[int]], ranks: Sequence[Sequence[str]]
) -> float:
    """Draw each in its shape, and return where the last one ends."""
    owner = {element: rank for rank, elements in enumerate(ranks) for element in elements}
    left = 0.0
    for name, shape in shapes.items():
        columns = shape[1] if len(shape) > 1 else 1
        for row, column in np.ndindex(shape[0], columns):
            element = f"{name}{row * columns + column}"
            _cell(axes, left + column, row, element, owner[element])
        axes.text(left + columns / 2, -0.25, name, ha="center", fontsize=LABEL, style="italic")
        left += columns + 0.7
    return left - 0.7


def _cell(axes: Axes, left: float, top: float, element: str, rank: int) -> None:
    box(axes, left, top, 1, 0.9, element, face=(RANK[rank % 8], 0.55) if element else None)
    axes.patches[-1].set_hatch("" if element else "xxx")


def elements_kept(
    shapes: Mapping[str, torch.Size], layouts: Mapping[str, type[Flat | RowLayout]], ranks: int
) -> dict[str, list[list[str]]]:
    """Of each layout and rank the names of the elements in its shard, "" where it is padded."""
    numbers = [torch.arange(shape.numel()).view(shape) for shape in shapes.values()]
    ways: dict[str, list[list[str]]] = {}
    for title, kind in layouts.items():
        ways[title] = []
        for rank in range(ranks):
            own = kind([*shapes.values()], ranks, rank)
            if isinstance(own, Flat):
                spans = own.ranges()
                parts = [n.flatten()[slice(*s)] for n, s in zip(numbers, spans, strict=True)]
            else:
                parts = [own.piece(index, n).flatten() for index, n in enumerate(numbers)]
            pairs = zip(shapes, parts, strict=True)
            elements = [f"{name}{index}" for name, part in pairs for index in part.tolist()]
            ways[title].append(elements + [""] * (own.shard_numel - len(elements)))
    return ways


Holding = Mapping[str, str]  # part of the state → "whole" or "shard"; a part may be missing
CELL, APART, BAR = 0.2, 0.3, 0.34  # width of a number, gap between ranks, height of a strip
HIGH = 1.25  # of a row, in heights of a cell pair
SHARD, FULL = "shard", "whole"
A_STEP: dict[str, dict[str, Holding]] = {  # phase → event → what a rank holds after it
    "": {"between steps": {"parameters": SHARD}},
    "forward": {
        "gather": {"parameters": FULL},
        "compute": {"parameters": FULL},
        "free": {"parameters": SHARD},
    },
    "backward": {
        "gather": {"parameters": FULL},
        "compute": {"parameters": FULL, "gradients": FULL},
        "free weights": {"parameters": SHARD, "gradients": FULL},
        "reduce-scatter": {"parameters": SHARD, "gradients": SHARD},
    },
    "step": {"update": {"parameters": SHARD}},
}


def unit_life(phases: Mapping[str, Mapping[str, Holding]] = A_STEP, ranks: int = 4) -> Figure:
    """Time goes down, ranks stand side by side, and bars at the right count one rank's numbers.

    The unit has a number for each rank, so a shard is one cell and the whole is `ranks` cells.
    """
    events = [event for named in phases.values() for event in named.items()]
    wide = ranks * CELL + APART
    bars = ranks * wide + 0.1
    x, y = (-2.4, bars + (2 * ranks + 1) * 0.11 + 0.25), (len(events) * HIGH - 0.2, -0.75)
    figure, axes = sketch((3.75, 0.36 * len(events) + 0.5), x, y)
    parts = [*enumerate(("parameters", "gradients"))]
    for row, (name, held) in enumerate(events):
        for rank, (line, part), number in product(range(ranks), parts, range(ranks)):
            there = held.get(part) == "whole" or (part in held and number == rank)
            corner = rank * wide + number * CELL, row * HIGH + line * (BAR + 0.08)
            _numbers(axes, *corner, CELL, part if there else None)
        if name in ("gather", "reduce-scatter"):  # a line joins the ranks
            middle = row * HIGH + BAR / 2 + (BAR + 0.08) * (name == "reduce-scatter")
            for rank in range(1, ranks):
                axes.plot([rank * wide - APART, rank * wide], [middle] * 2, color=GREY, lw=2)
        total = 0
        for part, how in held.items():
            count = {"shard": 1, "whole": ranks + (part == "parameters")}[how]  # the shard stays
            _numbers(axes, bars + 0.11 * total, row * HIGH + 0.2, 0.11 * count, part)
            total += count
        place = bars + 0.11 * total + 0.06, row * HIGH + 0.4
        axes.text(*place, str(total), va="center", fontsize=LABEL)
    _names(axes, phases)
    for rank in range(ranks):
        middle = rank * wide + ranks * CELL / 2
        axes.text(middle, -0.32, f"rank {rank}", ha="center", fontsize=LABEL)
    axes.text(bars, -0.32, "numbers held", fontsize=LABEL)
    return figure


def _numbers(axes: Axes, left: float, top: float, width: float, part: str | None) -> None:
    """Numbers of a part of the state; if there are none, an empty outline."""
    look: dict[str, Any] = {"face": (PART[part], 1.0), "edge": "black"} if part else {}
    box(axes, left, top, width, BAR, linewidth=0.5, **look)
    axes.patches[-1].set_hatch(2 * PART_HATCH[part] if part else "")


def _names(axes: Axes, phases: Mapping[str, Mapping[str, Holding]]) -> None:
    row = 0
    for phase, events in phases.items():
        top, bottom = row * HIGH - 0.05, (row + len(events)) * HIGH - 0.4
        axes.plot([-2.1] * 2, [top, bottom], color=GREY, lw=1)
        middle = (top + bottom) / 2
        axes.text(-2.25, middle, phase, rotation=90, ha="center", va="center", fontsize=LABEL)
        for name in events:
            axes.text(-0.12, row * HIGH + 0.38, name, ha="right", va="center", fontsize=LABEL)
            row += 1


WIDE, TALL, DOWN = 1.0, 0.8, 1.55  # of a rank's box, and from one node to the next


def mesh(nodes: int, local: int) -> Figure:
    """Each rank with the shard it keeps: rows share a model, columns keep copies of one shard."""
    right, bottom = (local - 1) * 1.25 + WIDE, (nodes - 1) * DOWN + TALL
    size = 3.75, 0.95 * nodes + 0.4
    figure, axes = sketch(size, (-0.95, right + 0.1), (bottom + 0.5, -0.5))
    cell = 0.8 * WIDE / local
    for rank in range(nodes * local):  # in its box the model as a strip, of which a shard is filled
        node, place = divmod(rank, local)
        left, top = place * 1.25, node * DOWN
        box(axes, left, top, WIDE, TALL, edge=RANK[rank % 8], linewidth=2)
        style.write(axes, left + WIDE / 2, top + 0.25, f"rank {rank}")
        for number in range(local):
            face = (PART["parameters"], 1.0) if number == place else None
            box(axes, left + 0.1 + number * cell, top + 0.45, cell, 0.22, face=face, linewidth=0.5)
    for node in range(nodes):
        y = node * DOWN + TALL / 2
        for place in range(1, local):
            axes.plot([place * 1.25 - 0.25, place * 1.25], [y, y], color=GREY, lw=2)
        axes.text(-0.15, y, f"node {node}", ha="right", va="center", fontsize=LABEL)
    for place, node in product(range(local), range(1, nodes)):
        ends = [(node - 1) * DOWN + TALL, node * DOWN]
        axes.plot([place * 1.25 + WIDE / 2] * 2, ends, color=GREY, lw=1.6, linestyle=":")
    row = "along a row (solid): gather weights, reduce-scatter gradients"
    column = "down a column (dotted): all-reduce one shard of gradients"
    axes.text(right / 2, -0.2, row, ha="center", fontsize=LABEL)
    axes.text(right / 2, bottom + 0.2, column, ha="center", va="top", fontsize=LABEL)
    return figure
