"""Pictures of matrices that are split, of losses, and of who talks on a mesh."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import Look, arrow, dot, sketch
from minidist.plots import style
from minidist.plots.curves import curves, of_steps
from minidist.plots.style import COLORS, GREY, RANK, TITLE, box

WIDE = 3.6  # inches
RANKS = 4
MATRICES = (  # name, left, top, width, height, and into how many columns and rows it is cut
    ("x[B, D]", 0, 1.0, 2, 2, 1, 1),
    ("up[D, F/T]", 3, 1.0, 4, 2, RANKS, 1),
    ("h[B, F/T]", 8.5, 1.0, 4, 2, RANKS, 1),
    ("h[B, F/T]", 0, 5.1, 4, 2, RANKS, 1),
    ("down[F/T, D]", 5, 4.6, 2, 3, 1, RANKS),
)
SIGNS = {(2.5, 2.0): "·", (7.75, 2.0): "=", (4.5, 6.1): "·", (7.75, 6.1): "="}
X, H, Y = (0.3, 2.2), (5.6, 3.4), (12.1, 2.2)  # left and width
GAPS = 2.5, 9.0
FORMS = {  # by height: title, states (left, width, name, columns, rows), what is sent where
    0.3: (
        "full between the halves",
        [(*X, "x[B, D]", 1, 1), (*H, "h[B, F/T]", RANKS, 1), (*Y, "y[B, D]", 1, 1)],
        [(GAPS[0], "nothing", "all-reduce"), (GAPS[1], "all-reduce", "nothing")],
    ),
    4.8: (
        "by tokens between the halves",
        [(*X, "x[B/T, D]", 1, RANKS), (*H, "h[B, F/T]", RANKS, 1), (*Y, "y[B/T, D]", 1, RANKS)],
        [(GAPS[0], "all-gather", "reduce-scatter"), (GAPS[1], "reduce-scatter", "all-gather")],
    ),
}
Sent = Mapping[str, Mapping[int, int]]  # by dimension, bytes to each rank
LINES: dict[str, tuple[str, Any]] = {
    "data": (COLORS[1], "-"),
    "pipeline": (COLORS[2], "--"),
    "tensor": (COLORS[0], ":"),
}
ACROSS, DOWN, APART, SLANT, RADIUS = 1.5, 1.7, 2.2, 0.35, 0.26


def split_block() -> Figure:
    """The two matrices of a feed-forward half, cut by columns and by rows, on four ranks."""
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
        style.write(axes, *place, sign, TITLE)
    style.write(axes, 11.45, 5.05, "y[B, D] (+T)", TITLE)
    style.write(axes, 11.45, 7.2, "an all-reduce adds them")
    return figure


def _part(
    axes: Axes, left: float, top: float, width: float, height: float, rank: int | None
) -> None:
    face = None if rank is None else (RANK[rank], 0.5)
    box(axes, left, top, width, height, "all ranks" if rank is None else str(rank), face=face)


def half_twice() -> Figure:
    """What ranks hold before, in and after a half, and what is sent between; then by tokens."""
    figure, axes = sketch((WIDE, 2.35), (-0.1, 14.6), (8.8, -0.5), margin=0.0)
    for top, (title, states, sent) in FORMS.items():
        style.write(axes, 7.25, top - 0.2, title, TITLE, fontweight="bold")
        for left, wide, name, columns, rows in states:
            style.write(axes, left + wide / 2, top + 0.75, name, TITLE)
            for row, column in product(range(rows), range(columns)):
                rank = row + column if columns * rows > 1 else None
                place = left + wide / columns * column, top + 1.2 + 2.2 / rows * row
                _part(axes, *place, wide / columns, 2.2 / rows, rank)
        for left, there, back in sent:
            right, look = left + 3.1, {"mutation_scale": 7, "shrinkA": 2, "shrinkB": 2}
            arrow(axes, (left, top + 2.05), (right, top + 2.05), GREY, 1, **look)
            arrow(axes, (right, top + 3.15), (left, top + 3.15), GREY, 1, **look)
            style.write(axes, left + 1.55, top + 1.65, there)
            style.write(axes, left + 1.55, top + 2.75, back)
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
    style.legend_below(figure, 2)
    return figure
