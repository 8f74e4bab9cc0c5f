"""Who talks to whom on a mesh of three dimensions, from what each rank has sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from course.figures.boxes import Look, arrow
from minidist.plots import style
from minidist.plots.style import COLORS, RANK, TITLE

Sent = Mapping[str, Mapping[int, int]]  # by dimension, bytes to each rank
LINES: dict[str, tuple[str, Any]] = {
    "data": (COLORS[1], "-"),
    "pipeline": (COLORS[2], "--"),
    "tensor": (COLORS[0], ":"),
}
ACROSS, DOWN, APART, SLANT, RADIUS = 1.5, 1.7, 2.2, 0.35, 0.26


def who_talks(of_ranks: Sequence[Sent], sizes: Mapping[str, int]) -> Figure:
    """Ranks of a mesh "data" × "pipeline" × "tensor" in their places, joined where one sends.

    Each replica stands for itself, its stages from top to bottom. The legend says what a rank sends
    in each dimension at most.
    """
    places = []
    for replica, stage, part in np.ndindex(*sizes.values()):
        left = replica * (APART + ACROSS * (sizes["tensor"] - 1))
        places.append((left + ACROSS * part + SLANT * stage, -DOWN * stage))
    figure, [[axes]] = style.subplots(1, 1, size=(3.5, 0.7 + 0.75 * sizes["pipeline"]))
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
        color = RANK[rank % len(RANK)]
        axes.add_patch(Circle(place, RADIUS, facecolor=(color, 0.45), edgecolor=color))
        style.write(axes, *place, str(rank), fontsize=TITLE)
    right, bottom = max(x for x, _ in places), min(y for _, y in places)
    axes.set(xlim=(-0.4, right + 0.4), ylim=(bottom - 0.4, 0.85), aspect="equal")
    axes.axis("off")
    for name, nbytes in most.items():
        color, dashes = LINES[name]
        axes.plot([], [], color=color, linestyle=dashes, label=f"{name}: {nbytes:,} bytes")
    style.legend_below(figure, 3)
    return figure
