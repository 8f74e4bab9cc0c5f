"""The picture of ways to cut parameters: who keeps which number of them, padding included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.plots import style
from minidist.plots.style import GREY, RANK


def cuts(
    shapes: Mapping[str, Sequence[int]], ways: Mapping[str, Sequence[Sequence[str]]]
) -> Figure:
    """A panel for each way: the parameters, coloured by who keeps what, and each rank's message.

    Args:
        shapes: parameter → its shape, one or two dimensions; element i of `a` is called `a{i}`.
        ways: title → of each rank, the elements it sends in order; "" is padding.
    """
    tallest = max([shape[0] for shape in shapes.values()])
    size = 4.8, len(ways) * (0.27 * (tallest + 1) + 0.3)
    figure, grid = style.subplots(len(ways), 1, size=size)
    for axes, (title, ranks) in zip(grid[:, 0], ways.items(), strict=True):
        left = _parameters(axes, shapes, ranks) + 1.2
        for rank, elements in enumerate(ranks):
            for row, element in enumerate(elements):
                _cell(axes, left, row, element, rank)
            axes.text(left + 0.5, -0.25, f"rank {rank}", ha="center", fontsize=8)
            left += 1.8
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlim(-0.1, left)
        axes.set_ylim(tallest + 0.1, -0.9)
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
        for row in range(shape[0]):
            for column in range(columns):
                element = f"{name}{row * columns + column}"
                _cell(axes, left + column, row, element, owner[element])
        axes.text(left + columns / 2, -0.25, name, ha="center", fontsize=8, style="italic")
        left += columns + 0.7
    return left - 0.7


def _cell(axes: Axes, left: float, top: float, element: str, rank: int) -> None:
    color = (RANK[rank % 8], 0.55) if element else "none"
    box = Rectangle((left, top), 1, 0.9, facecolor=color, edgecolor=GREY, linewidth=0.7)
    box.set_hatch("" if element else "xxx")
    axes.add_patch(box)
    if element:
        axes.text(left + 0.5, top + 0.45, element, ha="center", va="center_baseline", fontsize=8)


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
