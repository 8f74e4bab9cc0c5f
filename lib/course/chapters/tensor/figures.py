"""Pictures of what is split inside a layer (matrices, sequence, experts), and of who then talks."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import Look, arrow, dot, sketch
from from_scratch.context import pieces
from minidist.plots import style
from minidist.plots.cells import Cell, cells, of_ranks
from minidist.plots.curves import curves, of_steps
from minidist.plots.style import COLORS, GREY, RANK, TITLE, box

WIDE = 3.7  # inches
RANKS = 4
MATRICES = (  # name, left, top, width, height, and into how many columns and rows it is cut
    ("x", 0, 1.0, 2, 2, 1, 1),
    ("A", 3, 1.0, 4, 2, RANKS, 1),
    ("hidden units", 8.5, 1.0, 4, 2, RANKS, 1),
    ("hidden units", 0, 5.1, 4, 2, RANKS, 1),
    ("B", 5, 4.6, 2, 3, 1, RANKS),
)
SIGNS = {(2.5, 2.0): "·", (7.75, 2.0): "=", (4.5, 6.1): "·", (7.75, 6.1): "="}
Sent = Mapping[str, Mapping[int, int]]  # by dimension, bytes to each rank
LINES: dict[str, tuple[str, Any]] = {
    "data": (COLORS[1], "-"),
    "pipeline": (COLORS[2], "--"),
    "tensor": (COLORS[0], ":"),
}
ACROSS, DOWN, APART, SLANT, RADIUS = 1.5, 1.7, 2.2, 0.35, 0.26


def split_block() -> Figure:
    """The two matrices of a feed-forward block, cut by columns and by rows, on four ranks."""
    figure, axes = sketch((WIDE, 2.1), (-0.1, 14.6), (7.9, -0.3), margin=0.0)
    for name, left, top, width, height, columns, rows in MATRICES:
        style.write(axes, left + width / 2, top - 0.45, name, TITLE)
        wide, high = width / columns, height / rows
        for row, column in product(range(rows), range(columns)):
            rank = row + column if columns * rows > 1 else None
            _part(axes, left + column * wide, top + row * high, wide, high, rank)
    for rank in range(RANKS):
        _part(axes, 8.5 + 1.6 * rank, 5.5, 1.1, 1.2, rank)
    plus = {(8.25 + 1.6 * rank, 6.1): "+" for rank in range(1, RANKS)}
    for place, sign in (SIGNS | plus).items():
        style.write(axes, *place, sign, TITLE + 2)
    style.write(axes, 11.45, 7.2, "an all-reduce adds them")
    return figure


def _part(
    axes: Axes, left: float, top: float, width: float, height: float, rank: int | None
) -> None:
    face = None if rank is None else (RANK[rank], 0.5)
    box(axes, left, top, width, height, "all ranks" if rank is None else str(rank), face=face)


def causal_blocks(ranks: int) -> Figure:
    """Which piece of queries sees which of keys, by whom and when: in order, and in a zigzag."""
    figure, grid = style.subplots(1, 2, size=(WIDE, 2.3))
    count = 2 * ranks
    for axes, zigzag in zip(grid[0], (False, True), strict=True):
        cut = 1 if zigzag else 2  # each rank has two of `count` pieces, in order side by side
        owner = {
            cut * piece + half: rank
            for rank in range(ranks)
            for piece in pieces(rank, ranks, zigzag)
            for half in range(cut)
        }
        names = [f"rank {owner[query]}" for query in range(count)]
        rows = [[_block(owner, query, key) for key in range(count)] for query in range(count)]
        title = "zigzag" if zigzag else "in order"
        cells(axes, rows, names, title=title, x_label="keys and values")
    return figure


def _block(owner: Mapping[int, int], query: int, key: int) -> Cell:
    """A cell with the step in which a query's rank has the key; empty where it may not look."""
    if key > query:
        return Cell()
    step = (owner[query] - owner[key]) % len(set(owner.values())) + 1
    return Cell(str(step), (RANK[owner[query]], 0.5))


def dispatch(choices: Sequence[Sequence[int]], experts: int) -> Figure:
    """Tokens where they are, and where their experts are; `choices`: each rank's, by token."""
    ranks, each = len(choices), experts // len(choices)
    here = [[(expert, rank) for expert in own] for rank, own in enumerate(choices)]
    sent = sorted(chain.from_iterable(here))
    there = [[token for token in sent if token[0] // each == rank] for rank in range(ranks)]
    panels = {
        "tokens, and the experts that the router has picked": here,
        "after the dispatch: each rank has its experts' tokens": there,
    }
    figure, drawn = style.stacked(panels, (WIDE, 0.5 * ranks + 0.6))
    for axes, rows in drawn:
        shown = [
            [
                Cell(str(expert), (RANK[rank], 0.5), 0.92, x)
                for x, (expert, rank) in enumerate(tokens)
            ]
            for tokens in rows
        ]
        cells(axes, of_ranks(shown), tall=0.9)
        axes.set_xlim(right=max(map(len, there + here)) + 0.05)
    return figure


def balance(loads: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """For each run, the share of tokens that each expert takes, over the steps: stacked bands."""
    figure, drawn = style.stacked(loads, (3.4, 1.6 * len(loads)), sharex=True)
    for axes, shares in drawn:
        colors = [RANK[number % len(RANK)] for number in range(len(shares[0]))]
        by_expert = list(zip(*shares, strict=True))
        axes.stackplot(range(len(shares)), by_expert, colors=colors, alpha=0.7, edgecolor=GREY)
        for number, (share, top) in enumerate(zip(shares[-1], accumulate(shares[-1]), strict=True)):
            if share > 0.04:
                style.beside(axes, top - share / 2, str(number))
        axes.set(xlim=(0, len(shares) - 1), ylim=(0, 1))
        style.chart(axes)
    axes.set_xlabel("step", fontsize=TITLE)
    return figure


def losses(runs: Mapping[str, Sequence[float]]) -> Figure:
    """The loss over the steps, on a logarithmic axis; each run's name at its end."""
    return curves({"loss": of_steps(runs)}, x_label="step", x_log=False)


def who_talks(of_ranks: Sequence[Sent], sizes: Mapping[str, int]) -> Figure:
    """Ranks of a mesh "data" × "pipeline" × "tensor" in their places, joined where one sends.

    Each replica stands for itself, its stages from top to bottom. The legend says what a rank sends
    in each dimension at most.
    """
    places = []
    for replica, stage, part in np.ndindex(*sizes.values()):
        left = replica * (APART + ACROSS * (sizes["tensor"] - 1))
        places.append((left + ACROSS * part + SLANT * stage, -DOWN * stage))
    right, bottom = max(x for x, _ in places) + 0.4, min(y for _, y in places) - 0.4
    size = 3.5, 0.7 + 0.75 * sizes["pipeline"]
    figure, axes = sketch(size, (-0.4, right), (bottom, 0.85))
    axes.set_aspect("equal")
    most = dict.fromkeys(sizes, 0)
    for rank, sent in enumerate(of_ranks):
        for name, to in sent.items():
            most[name] = max(most[name], sum(to.values()))
            color, dashes = LINES[name]
            look: Look = {"arrowstyle": "-", "linestyle": dashes, "shrinkA": 9, "shrinkB": 9}
            look |= {"connectionstyle": f"arc3,rad={-0.3 if name == 'data' else 0}"}
            for peer in (each for each in to if each > rank):
                arrow(axes, places[rank], places[peer], color, 1.8, **look)
    for rank, place in enumerate(places):
        dot(axes, *place, rank)
    for name, nbytes in most.items():
        color, dashes = LINES[name]
        axes.plot([], [], color=color, linestyle=dashes, label=f"{name}: {nbytes:,} bytes")
    style.legend_below(figure, 3)
    return figure
