"""Pictures of algorithms: rounds of messages, pipelines, trees, and lower bounds."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from matplotlib.figure import Figure

from course.drawing.sketches import Look, arrow, dot, names_left, note, shares, sketch
from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.curves import plain_logs
from minidist.plots.style import COLORS, GREY, MARKERS, RANK
from minidist.schedule.replay import Replay
from minidist.schedule.schedule import Schedule, Step

DOWN = 1.5  # from one row of ranks to the next
THICK = 3.4  # points, for a message that carries the whole tensor


def rounds(schedule: Schedule, *, local: int = 0) -> Figure:
    """Each round of messages as arrows from senders down to receivers, in the senders' colours.

    Steps that differ only in their chunks are one round; beside it stands what a message carries.
    Each `local` ranks are on a node, which has a frame.
    """
    steps, ranks = list(schedule.outline()), schedule.ranks
    size, height = (0.35 * ranks + 0.9, 0.62 * len(steps) + 0.75), len(steps) + 0.35
    figure, axes = sketch(size, (-0.6, ranks + 2.4), (height, -0.75), margin=0.02)
    for first in range(0, ranks if local else 0, local or 1):
        frame = first - 0.45, -0.4, local - 0.1, height + 0.35
        style.box(axes, *frame, face=(GREY, 0.14), linewidth=0)
        middle = first + (local - 1) / 2
        style.write(axes, middle, -0.6, f"node {first // local}", style.TITLE)
    for row, (step, times) in enumerate(steps):
        for src, dst in zip(step.src.tolist(), step.dst.tolist(), strict=True):
            look: Look = {"mutation_scale": 9, "shrinkA": 6, "shrinkB": 7, "zorder": 3}
            arrow(axes, (src, row), (dst, row + 1), RANK[src % 8], 1.4, **look)
        note(axes, ranks - 0.35, row + 0.5, carried(step, times, schedule.chunks))
    for row, rank in np.ndindex(len(steps) + 1, ranks):
        dot(axes, rank, row, rank)
    return figure


def carried(step: Step, times: int, chunks: int) -> str:
    """The payload of a message in this step, in shares of the tensor."""
    share = Fraction(int(step.width.max()), chunks)
    text = "all of the\ntensor" if share == 1 else f"{share} of the\ntensor"
    return f"{times} × {text}" if times > 1 else text


def messages(panels: Mapping[str, Sequence[Replay]], names: Sequence[str] = ()) -> Figure:
    """Panels side by side; in each a row of ranks, and another one after each schedule's messages.

    A message is a line in its sender's colour, as thick as its share of the tensor. `names`: of the
    schedules, written to the left of the first panel.
    """
    most = max(len(each) for each in panels.values())
    size = min(7.2, 1.5 * len(panels) + (0.4 if names else 0)), 0.62 * most + 0.65
    figure, grid = style.subplots(1, len(panels), size=size)
    for axes, (title, each) in zip(grid[0], panels.items(), strict=True):
        ranks = each[0].ranks
        for at, replay in enumerate(each):
            for (src, dst), share in shares(replay, replay.events).items():
                heights = at * DOWN + 0.24, (at + 1) * DOWN - 0.24
                width = max(0.8, THICK * share)
                axes.plot((src, dst), heights, color=RANK[src % 8], lw=width, solid_capstyle="butt")
        for row, rank in np.ndindex(len(each) + 1, ranks):
            dot(axes, rank, row * DOWN, rank)
        axes.set_title(title, fontsize=style.TITLE)
        axes.set(xlim=(-0.5, ranks - 0.5), ylim=(most * DOWN + 0.35, -0.35), aspect="equal")
        axes.set_axis_off()
    names_left(grid[0, 0], -0.6, {(at + 0.5) * DOWN: name for at, name in enumerate(names)})
    return figure


def floors(
    counted: Mapping[str, tuple[float, float]],
    ranks: int,
    places: Mapping[str, tuple[float, float]],
) -> Figure:
    """Each algorithm, by its (steps, tensors that its busiest rank sends), and both lower bounds.

    `places`: where an algorithm's name stands, in points from its mark, if not to the right; at 0
    to the side it is above or below the mark.
    """
    figure, axes = style.single(size=(3.7, 3.3))
    least_steps, least_sent = np.ceil(np.log2(ranks)), 2 * (ranks - 1) / ranks
    axes.axvline(least_steps, color=GREY, ls="--", lw=1)
    axes.axhline(least_sent, color=GREY, ls="--", lw=1)
    for number, (name, point) in enumerate(counted.items()):
        color = style.color_of(name.removeprefix("binomial "))
        axes.plot(*point, MARKERS[number % 7], color=color, markersize=8)
        place = places.get(name, (8, 0))
        side = "center" if not place[0] else "left" if place[0] > 0 else "right"
        look: Look = {"fontsize": 8, "ha": side, "va": "center"}
        axes.annotate(name, point, place, textcoords="offset points", **look)
    style.on_top(axes, least_steps, "fewest steps")
    style.beside(axes, least_sent, "fewest\nbytes")
    plain_logs(axes, [1, 2, 5, 10, 20, 50, 100, 200])
    axes.set(xlim=(least_steps * 0.8, 2.9 * ranks), ylim=(least_sent * 0.55, 1.45 * ranks))
    style.chart(axes, x_label="steps", y_label="tensors sent by the busiest rank")
    return figure


def pipeline(schedule: Schedule) -> Figure:
    """A row for each link, a column for each step; a cell has the number of the segment.

    Sums on their way up to rank 0 are blue, finished ones on their way back are green and hatched.
    """
    sends = [(number, send) for number, step in enumerate(schedule) for send in step]
    links = list(dict.fromkeys((send.src, send.dst) for _, send in sends))
    steps = 1 + max(number for number, _ in sends)
    looks: dict[bool, Look] = {
        True: {"face": (COLORS[0], 0.4)},
        False: {"face": (COLORS[2], 0.4), "edge": (GREY, 0.4), "hatch": "////"},
    }
    rows: list[list[Cell]] = [[] for _ in links]
    for at, send in sends:
        cell = Cell(str(send.chunk), at=at, **looks[send.reduce])
        rows[links.index((send.src, send.dst))].append(cell)
    figure, axes = style.single(size=(0.28 * steps + 1.2, 0.3 * len(links) + 0.75))
    names = [f"rank {src} → {dst}" for src, dst in links]
    cells(axes, rows, names, range(1, steps + 1), tall=0.86, x_label="step")
    return figure


def double_tree(schedule: Schedule) -> Figure:
    """The edges on which sums travel up: of the tree for the first half above, the other below.

    A rank stands at the same place from left to right in both.
    """
    trees, ranks = edges(schedule), schedule.ranks
    tops = [max(level(parents, rank) for rank in range(ranks)) for parents in trees]
    size, high = (min(4.8, 0.4 * ranks + 0.5), 3.2), tops[1] + 1.1
    figure, axes = sketch(size, (-0.6, ranks - 0.4), (-high, high), margin=0.02)
    for parents, sign in zip(trees, (1, -1), strict=True):
        for rank in range(ranks):
            y = sign * (0.55 + level(parents, rank))
            if rank in parents:
                above = sign * (0.55 + level(parents, parents[rank]))
                axes.plot([rank, parents[rank]], [y, above], color=GREY, lw=1.3, zorder=1)
            dot(axes, rank, y, rank)
    note(axes, -0.4, tops[0] + 0.6, "tree 1: first half")
    note(axes, ranks - 0.6, -tops[1] - 0.6, "tree 2: second half", "right")
    axes.axhline(0, color=GREY, lw=0.7, ls=":")
    return figure


def edges(schedule: Schedule) -> tuple[dict[int, int], dict[int, int]]:
    """Each rank's parent, tree by tree."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for step in schedule:
        for send in step:
            if send.reduce:
                found[2 * send.chunk // schedule.chunks][send.src] = send.dst
    return found


def level(parents: dict[int, int], rank: int) -> int:
    """The height of a rank above the leaves, in edges."""
    children = (child for child, up in parents.items() if up == rank)
    return max((1 + level(parents, child) for child in children), default=0)
