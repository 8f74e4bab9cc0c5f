"""Pictures of algorithms: rounds of messages, pipelines, trees, and lower bounds."""

from collections.abc import Mapping
from fractions import Fraction
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter

from course.figures.boxes import single
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS, RANK
from minidist.schedule.schedule import Schedule, Step

HEIGHT = 0.62  # inches of a round


def rounds(schedule: Schedule, *, local: int = 0) -> Figure:
    """Each round of messages as arrows from senders down to receivers, in the senders' colours.

    Steps that differ only in their chunks are one round. Beside it stands what a message carries.
    `schedule`: of at most 16 ranks, in which the messages of a step are equally large; `local`:
    ranks on each node, which then has a frame; 0 for none.
    """
    steps = list(schedule.outline())
    width = 0.35 * schedule.ranks + 0.9
    figure, axes = single(size=(width, HEIGHT * len(steps) + 0.75), layout="none")
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.98)
    axes.set(xlim=(-0.6, schedule.ranks + 2.4), ylim=(len(steps) + 0.35, -0.75))
    axes.set_axis_off()
    for first in range(0, schedule.ranks if local else 0, local or 1):
        box = Rectangle((first - 0.45, -0.4), local - 0.1, len(steps) + 0.7)
        box.set(facecolor=GREY, alpha=0.14, linewidth=0)
        axes.add_patch(box)
        axes.text(first + (local - 1) / 2, -0.5, f"node {first // local}", ha="center", fontsize=8)
    for row, (step, times) in enumerate(steps):
        for src, dst in zip(step.src.tolist(), step.dst.tolist(), strict=True):
            arrow = FancyArrowPatch((src, row), (dst, row + 1), shrinkA=6, shrinkB=7, zorder=3)
            arrow.set(arrowstyle="-|>", mutation_scale=9, color=RANK[src % 8], linewidth=1.4)
            axes.add_patch(arrow)
        label = carried(step, times, schedule.chunks)
        axes.text(schedule.ranks - 0.35, row + 0.5, label, va="center", fontsize=8)
    for row in range(len(steps) + 1):
        for rank in range(schedule.ranks):
            dot(axes, rank, row, rank)
    return figure


def carried(step: Step, times: int, chunks: int) -> str:
    """What a message of this step carries, in shares of the tensor."""
    share = Fraction(int(step.width.max()), chunks)
    text = "all of the\ntensor" if share == 1 else f"{share} of the\ntensor"
    return f"{times} × {text}" if times > 1 else text


def dot(axes: Axes, x: float, y: float, rank: int, size: float = 13) -> None:
    """A rank: its number on its colour."""
    color = RANK[rank % len(RANK)]
    axes.plot(x, y, "o", markersize=size, color=color, markeredgecolor=GREY, zorder=4)
    axes.text(
        x, y, str(rank), ha="center", va="center_baseline", fontsize=8, zorder=5, color=ink(color)
    )


def ink(color: str) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else "white"


def floors(
    counted: Mapping[str, tuple[float, float]],
    ranks: int,
    places: Mapping[str, tuple[float, float]],
) -> Figure:
    """Each algorithm at its number of steps and the tensors that its busiest rank sends.

    `counted`: name → (steps, tensors sent); `ranks`: whose two floors are drawn; `places`: name →
    where it is written, in points from its mark, if not to the right.
    """
    figure, axes = single(size=(3.7, 3.3))
    least_steps, least_sent = np.ceil(np.log2(ranks)), 2 * (ranks - 1) / ranks
    axes.axvline(least_steps, color=GREY, ls="--", lw=1)
    axes.axhline(least_sent, color=GREY, ls="--", lw=1)
    for number, (name, (steps, sent)) in enumerate(counted.items()):
        axes.plot(steps, sent, MARKERS[number % 7], color=style.color_of(name), markersize=8)
        x, y = places.get(name, (8, 0))
        side = "left" if x >= 0 else "right"
        axes.annotate(
            name, (steps, sent), (x, y), textcoords="offset points",
            fontsize=9, ha=side, va="center",
        )  # fmt: skip
    axes.text(least_steps * 1.06, ranks, "fewest steps", fontsize=8, color=GREY)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="tensors sent by the busiest rank")
    axes.set(xlim=(least_steps * 0.8, 2.9 * ranks), ylim=(least_sent * 0.55, 1.45 * ranks))
    below = least_steps * 1.06, least_sent * 0.9
    axes.text(*below, "fewest bytes", fontsize=8, color=GREY, va="top")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    style.chart(axes, labelsize=8)
    return figure


def pipeline(schedule: Schedule) -> Figure:
    """A row for each link, a column for each step; a cell has the number of the segment.

    Sums on their way up to rank 0 are blue, finished ones on their way back are green and hatched.
    """
    sends = [(number, send) for number, step in enumerate(schedule) for send in step]
    links = list(dict.fromkeys((send.src, send.dst) for _, send in sends))
    steps = 1 + max(number for number, _ in sends)
    figure, axes = single(size=(0.28 * steps + 1.2, 0.3 * len(links) + 0.75))
    for number, send in sends:
        row = links.index((send.src, send.dst))
        color, hatch = (COLORS[0], "") if send.reduce else (COLORS[2], "////")
        cell = axes.barh(row + 0.5, 1, 0.86, number, color=color, alpha=0.4)
        cell[0].set(hatch=hatch, edgecolor=GREY, linewidth=0.5)
        style.write(axes, number + 0.5, row + 0.5, str(send.chunk), fontsize=9)
    style.name_rows(axes, (f"rank {src} → {dst}" for src, dst in links))
    axes.set_xticks([step + 0.5 for step in range(steps)], map(str, range(1, steps + 1)))
    axes.set_xlim(-0.05, steps + 0.05)
    axes.set_xlabel("step", fontsize=9)
    style.table(axes)
    return figure


NAMES = ("tree 1: first half", "tree 2: second half")


def double_tree(schedule: Schedule) -> Figure:
    """The edges on which sums travel up: of the tree for the first half above, the other below.

    A rank stands at the same place from left to right in both.
    """
    trees = edges(schedule)
    figure, axes = single(size=(min(4.8, 0.4 * schedule.ranks + 0.5), 3.2), layout="none")
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.98)
    for parents, sign, name in zip(trees, (1, -1), NAMES, strict=True):
        top = max(level(parents, rank) for rank in range(schedule.ranks))
        for rank in range(schedule.ranks):
            y = sign * (0.55 + level(parents, rank))
            if rank in parents:
                above = sign * (0.55 + level(parents, parents[rank]))
                axes.plot([rank, parents[rank]], [y, above], color=GREY, lw=1.3, zorder=1)
            dot(axes, rank, y, rank)
        x, side = (-0.4, "left") if sign > 0 else (schedule.ranks - 0.6, "right")
        axes.text(x, sign * (top + 0.6), name, fontsize=9, va="center", ha=side)
    axes.axhline(0, color=GREY, lw=0.7, ls=":")
    axes.set(xlim=(-0.6, schedule.ranks - 0.4), ylim=(-top - 1.1, top + 1.1))
    axes.set_axis_off()
    return figure


def edges(schedule: Schedule) -> tuple[dict[int, int], dict[int, int]]:
    """Of each tree, each rank's parent."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for step in schedule:
        for send in step:
            if send.reduce:
                found[2 * send.chunk // schedule.chunks][send.src] = send.dst
    return found


def level(parents: dict[int, int], rank: int) -> int:
    """How many edges a rank is above the leaves."""

    @cache
    def height(at: int) -> int:
        return max((1 + height(child) for child, up in parents.items() if up == at), default=0)

    return height(rank)
