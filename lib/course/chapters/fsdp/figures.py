"""Pictures of FSDP: how units are cut into shards, how one lives, and hybrid sharding."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import note, sketch
from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.plots import style
from minidist.plots.cells import Cell, cells, heading
from minidist.plots.style import GREY, LABEL, PART, PART_HATCH, RANK, box


def cuts(
    shapes: Mapping[str, Sequence[int]], ways: Mapping[str, Sequence[Sequence[str]]]
) -> Figure:
    """A panel for each way: the parameters, coloured by who keeps what, and each rank's message.

    `ways`: title → of each rank, the elements that it sends, as `elements_kept` names them.
    """
    tallest = max(shape[0] for shape in shapes.values())
    figure, panels = style.stacked(ways, (3.75, len(ways) * (0.25 * (tallest + 1) + 0.3)))
    for axes, ranks in panels:
        owner = {element: rank for rank, elements in enumerate(ranks) for element in elements}
        left, rows = 0.0, [list[Cell]() for _ in range(tallest + 1)]
        for name, (count, *rest) in shapes.items():
            columns = rest[0] if rest else 1
            rows[0].append(heading(name, columns, left))
            for index in range(count * columns):
                row, column = divmod(index, columns)
                element = f"{name}{index}"
                rows[row + 1].append(_element(element, owner[element], left + column))
            left += columns + 0.7
        for rank, elements in enumerate(ranks):
            left += 0.5 if rank == 0 else 1.8
            rows[0].append(heading(f"rank {rank}", 1, left))
            for row, element in enumerate(elements, 1):
                rows[row].append(_element(element, rank, left))
        cells(axes, rows, tall=0.9)
    return figure


def _element(name: str, rank: int, left: float) -> Cell:
    if name:
        return Cell(name, (RANK[rank % 8], 0.55), at=left)
    return Cell(at=left, hatch="xxx")


def elements_kept(
    shapes: Mapping[str, torch.Size], layouts: Mapping[str, type[Flat | RowLayout]], ranks: int
) -> dict[str, list[list[str]]]:
    """Names of the elements in each rank's shard, by layout; padding is ""."""
    names = [f"{name}{index}" for name, shape in shapes.items() for index in range(shape.numel())]
    numbers = torch.arange(1, len(names) + 1)  # 0 is padding
    ways: dict[str, list[list[str]]] = {}
    for title, kind in layouts.items():
        layout = kind([*shapes.values()], ranks, 0)
        table = torch.zeros(layout.padded, dtype=torch.long)  # all shards, rank by rank
        if isinstance(layout, Flat):
            table[: len(names)] = numbers
        else:
            layout.pack(torch.split(numbers, [shape.numel() for shape in shapes.values()]), table)
        ways[title] = [[["", *names][n] for n in own] for own in table.view(ranks, -1).tolist()]
    return ways


Event = tuple[str, str, str, str]  # its phase and name, what a rank then has of PARTS
PARTS = "parameters", "gradients"
A_STEP: Sequence[Event] = (
    ("", "between steps", "shard", ""),
    ("forward", "gather", "whole", ""),
    ("forward", "compute", "whole", ""),
    ("forward", "free", "shard", ""),
    ("backward", "gather", "whole", ""),
    ("backward", "compute", "whole", "whole"),
    ("backward", "free weights", "shard", "whole"),
    ("backward", "reduce-scatter", "shard", "shard"),
    ("step", "update", "shard", ""),
)
CELL, APART, BAR = 0.2, 0.3, 0.34  # width of a number, gap between ranks, height of a strip
HIGH = 1.25  # a row, in heights of a cell pair


def unit_life(events: Sequence[Event] = A_STEP, ranks: int = 4) -> Figure:
    """Time goes down, ranks stand side by side, and bars at the right count one rank's numbers.

    The unit has a number for each rank, so a shard is one cell and the whole is `ranks` cells.
    """
    wide = ranks * CELL + APART
    bars = ranks * wide + 0.1
    x, y = (-2.4, bars + (2 * ranks + 1) * 0.11 + 0.25), (len(events) * HIGH - 0.2, -0.75)
    figure, axes = sketch((3.75, 0.36 * len(events) + 0.5), x, y)
    for row, (_, name, *held) in enumerate(events):
        top, total = row * HIGH, 0
        note(axes, -0.12, top + 0.38, name, "right", fontsize=LABEL)
        for line, (part, how) in enumerate(zip(PARTS, held, strict=True)):
            for rank, number in product(range(ranks), repeat=2):
                there = how == "whole" or (how == "shard" and number == rank)
                corner = rank * wide + number * CELL, top + line * (BAR + 0.08)
                _numbers(axes, *corner, CELL, part if there else None)
            # What is gathered is there beside the shard.
            count = {"": 0, "shard": 1, "whole": ranks + (part == "parameters")}[how]
            if count:
                _numbers(axes, bars + 0.11 * total, top + 0.2, 0.11 * count, part)
            total += count
        note(axes, bars + 0.11 * total + 0.06, top + 0.4, str(total), fontsize=LABEL)
        if name in ("gather", "reduce-scatter"):  # a line joins the ranks
            middle = top + BAR / 2 + (BAR + 0.08) * (name == "reduce-scatter")
            for rank in range(1, ranks):
                axes.plot([rank * wide - APART, rank * wide], [middle] * 2, color=GREY, lw=2)
    for phase in dict.fromkeys(phase for phase, *_ in events):
        rows = [row for row, event in enumerate(events) if event[0] == phase]
        top, bottom = rows[0] * HIGH - 0.05, (rows[-1] + 1) * HIGH - 0.4
        axes.plot([-2.1] * 2, [top, bottom], color=GREY, lw=1)
        style.write(axes, -2.25, (top + bottom) / 2, phase, rotation=90)
    for rank in range(ranks):
        style.write(axes, rank * wide + ranks * CELL / 2, -0.45, f"rank {rank}")
    note(axes, bars, -0.45, "numbers held", fontsize=LABEL)
    return figure


def _numbers(axes: Axes, left: float, top: float, width: float, part: str | None) -> None:
    """Numbers of a part of the state; if there are none, an empty outline."""
    look: dict[str, Any] = {}
    if part:
        look = {"face": (PART[part], 1.0), "edge": "black", "hatch": 2 * PART_HATCH[part]}
    box(axes, left, top, width, BAR, linewidth=0.5, **look)


WIDE, TALL, DOWN = 1.0, 0.8, 1.55  # a rank's box, and the way from node to node


def mesh(nodes: int, local: int) -> Figure:
    """Each rank with the shard it keeps: rows share a model, columns keep copies of one shard."""
    right, bottom = (local - 1) * 1.25 + WIDE, (nodes - 1) * DOWN + TALL
    size = 3.75, 0.95 * nodes + 0.4
    figure, axes = sketch(size, (-0.95, right + 0.1), (bottom + 0.5, -0.5))
    cell = 0.8 * WIDE / local
    for node, place in product(range(nodes), range(local)):
        left, top, rank = place * 1.25, node * DOWN, node * local + place
        box(axes, left, top, WIDE, TALL, edge=RANK[rank % 8], linewidth=2)
        style.write(axes, left + WIDE / 2, top + 0.25, f"rank {rank}")
        for number in range(local):  # the model as a strip, of which a shard is filled
            face = (PART["parameters"], 1.0) if number == place else None
            box(axes, left + 0.1 + number * cell, top + 0.45, cell, 0.22, face=face, linewidth=0.5)
        if place:
            axes.plot([left - 0.25, left], [top + TALL / 2] * 2, color=GREY, lw=2)
        else:
            note(axes, -0.15, top + TALL / 2, f"node {node}", "right", fontsize=LABEL)
        if node:
            ends = [top - DOWN + TALL, top]
            axes.plot([left + WIDE / 2] * 2, ends, color=GREY, lw=1.6, linestyle=":")
    row = "along a row (solid): gather weights, reduce-scatter gradients"
    column = "down a column (dotted): all-reduce one shard of gradients"
    style.write(axes, right / 2, -0.3, row)
    style.write(axes, right / 2, bottom + 0.32, column)
    return figure
