"""Pictures of MapReduce: map, shuffle and reduce, the death of a worker, and a step as a job."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import box, single
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PART_HATCH, PHASE, RANK
from minidist.schedule.simulate import Replay

WIDE, GAP = 1.0, 0.1  # of a map task, and between two
SLOT, BOX = 0.26, 1.1  # heights of a slot for a reducer, and of a task
MAPPED, REDUCED = 1.4, 2.85  # where the slots begin, and the reducers


def map_shuffle_reduce(
    inputs: Sequence[str], boxes: Sequence[Sequence[int]], parts: Sequence[Mapping[str, Any]]
) -> Figure:
    """Each map task with its input and its boxes, a line from each box to its reducer.

    `inputs`: the text of each map task; `boxes`: boxes[m][r] is how many pairs map task m has for
    reducer r; an empty box has no line; `parts`: parts[r] is what reducer r makes of them.
    """
    figure, axes = single(size=(3.45, 3.7))
    across = len(inputs) * (WIDE + GAP) - GAP
    wide = (across - (len(parts) - 1) * 2 * GAP) / len(parts)
    for r, part in enumerate(parts):
        x = r * (wide + 2 * GAP)
        box(axes, x, REDUCED, wide, 1.15, face=(RANK[r], 0.3), linewidth=0.5)
        style.write(axes, x + wide / 2, REDUCED + 0.17, f"reducer {r}")
        style.write(axes, x + wide / 2, REDUCED + 0.66, _words(part))
    for m, (text, row) in enumerate(zip(inputs, boxes, strict=True)):
        left = m * (WIDE + GAP)
        box(axes, left, 0.2, WIDE, BOX)
        style.write(axes, left + WIDE / 2, 0.37, f"task {m}")
        style.write(axes, left + WIDE / 2, 0.84, "\n".join(textwrap.wrap(text, 9)))
        for r, count in enumerate(row):
            x, width = left + r * WIDE / len(row), WIDE / len(row)
            box(axes, x, MAPPED, width, SLOT, str(count), face=(RANK[r], 0.3), linewidth=0.5)
            if count:
                ends = x + width / 2, r * (wide + 2 * GAP) + wide * (m + 1) / (len(inputs) + 1)
                heights = MAPPED + SLOT, REDUCED
                (line,) = axes.plot(ends, heights, color=RANK[r], linewidth=0.7 + 0.5 * count)
                line.set(alpha=0.8, solid_capstyle="butt")
    for y, name in ((0.75, "map"), ((MAPPED + SLOT + REDUCED) / 2, "shuffle"), (3.42, "reduce")):
        axes.text(-0.12, y, name, ha="right", va="center", fontsize=9, fontweight="bold")
    axes.set(xlim=(-0.85, across + 0.05), ylim=(REDUCED + 1.2, 0.1))
    axes.set_axis_off()
    return figure


def _words(part: Mapping[str, Any]) -> str:
    """What a reducer has made, with no break between a key and its value."""
    pairs = ", ".join(f"{key}_{value}" for key, value in part.items())
    return "\n".join(textwrap.wrap(pairs, 13)).replace("_", " ")


BLOCK, APART, HIGH = 0.86, 0.1, 0.36
LOST = COLORS[1]
STATE = {"parameters": "weights", "optimizer state": "optimizer"}


def after_a_death(ranks: int, dead: int) -> Figure:
    """Ranks in their places with what each holds; the dead one crossed out, their group cut.

    Whole boxes are in a survivor's memory; what is lost has a dashed outline and a cross.
    """
    figure, axes = single(size=(3.45, 2.0))
    for rank in range(ranks):
        x, gone = rank * (BLOCK + APART), rank == dead
        axes.text(x + BLOCK / 2, 0.06, f"rank {rank}", ha="center", va="bottom", fontsize=8)
        for row, (part, name) in enumerate(STATE.items()):
            _part(axes, x, 0.15 + 0.42 * row, part, name, lost=gone)
        _part(axes, x, 1.05, "gradients", "gradient", lost=True)
        if rank + 1 < ranks:
            ends = x + BLOCK / 2 + 0.1, x + BLOCK * 1.5 + APART - 0.1
            cut = dead in (rank, rank + 1)
            color, dashes = (LOST, ":") if cut else (GREY, "-")
            axes.plot(ends, (1.65, 1.65), dashes, color=color, linewidth=1.6)
            if cut:
                middle = x + BLOCK + APART / 2
                axes.plot(middle, 1.65, "x", color=LOST, markersize=8, markeredgewidth=2)
        axes.plot(x + BLOCK / 2, 1.65, "x" if gone else "o", color=LOST if gone else GREY)
    right = ranks * (BLOCK + APART)
    texts = {0.55: "kept by\nsurvivors", 1.23: "lost: step\nin flight", 1.65: "lost: group"}
    for y, text in texts.items():
        axes.text(right, y, text, va="center", fontsize=8)
    axes.set(xlim=(-0.05, right + 0.95), ylim=(1.85, -0.2))
    axes.set_axis_off()
    return figure


def _part(axes: Axes, x: float, y: float, part: str, name: str, *, lost: bool) -> None:
    if lost:
        box(axes, x, y, BLOCK, HIGH, name, edge=LOST, linewidth=1, dashed=True)
    else:
        box(axes, x, y, BLOCK, HIGH, name, face=(PART[part], 0.3), linewidth=0.6)
        axes.patches[-1].set(hatch=PART_HATCH[part], edgecolor=(PART[part], 0.4))


SPAN, SPACE, TALL = 1.0, 0.16, 0.34
ROWS = {  # of each row its top
    "shard": 0.0,
    "compute": 0.55,
    "own": 1.1,
    "summed": 2.2,
    "whole": 3.3,
    "weights": 3.85,
}


def step_as_reduce(scattered: Replay, gathered: Replay) -> Figure:
    """Samples, gradients in chunks, their sums, the whole sum and the weights, on each rank.

    `scattered`: the reduce-scatter whose messages are the shuffle; `gathered`: the all-gather that
    follows.
    """
    figure, axes = single(size=(3.45, 4.3))
    ranks = scattered.ranks
    for rank in range(ranks):
        left = rank * (SPAN + SPACE)
        axes.text(left + SPAN / 2, -0.1, f"rank {rank}", ha="center", va="bottom", fontsize=8.5)
        box(axes, left, ROWS["shard"], SPAN, TALL, f"shard {rank}")
        for x, text, phase in ((left, "fwd", "forward"), (left + SPAN / 2, "bwd", "backward")):
            face = PHASE[phase], 0.4
            box(axes, x, ROWS["compute"], SPAN / 2, TALL, text, face=face, linewidth=0)
        _chunks(axes, left, "own", [(c, str(c)) for c in range(ranks)], ranks)
        _chunks(axes, left, "summed", [(rank, "Σ")], ranks)
        _chunks(axes, left, "whole", [(c, "Σ") for c in range(ranks)], ranks)
        face = PART["parameters"], 0.45
        box(axes, left, ROWS["weights"], SPAN, TALL, "weights", face=face, linewidth=0)
    _lines(axes, scattered, "own", "summed")
    _lines(axes, gathered, "summed", "whole")
    names = {0.45: "map", 1.82: "shuffle", 2.37: "reduce", 2.92: "return", 4.02: "step"}
    for y, name in names.items():
        axes.text(-0.12, y, name, ha="right", va="center", fontsize=9, fontweight="bold")
    axes.set(xlim=(-0.95, ranks * (SPAN + SPACE) - SPACE + 0.05), ylim=(4.25, -0.4))
    axes.set_axis_off()
    return figure


def _middle(rank: int, chunk: int, ranks: int) -> float:
    return rank * (SPAN + SPACE) + (chunk + 0.5) * SPAN / ranks


def _chunks(axes: Axes, left: float, row: str, own: list[tuple[int, str]], ranks: int) -> None:
    """Cells of a gradient: those that the rank holds, with a text in each."""
    width, color = SPAN / ranks, PART["gradients"]
    box(axes, left, ROWS[row], SPAN, TALL, linewidth=0.5)
    for chunk, text in own:
        x = left + chunk * width
        box(axes, x, ROWS[row], width, TALL, face=(color, 0.3), linewidth=0)
        axes.patches[-1].set(hatch=PART_HATCH["gradients"], edgecolor=(color, 0.35))
        box(axes, x, ROWS[row], width, TALL, text, linewidth=0.5, fontsize=9)


def _lines(axes: Axes, replay: Replay, above: str, below: str) -> None:
    """Every message, in its sender's colour, and what stays where it is."""
    ranks = replay.ranks
    stays = [(rank, rank, rank) for rank in range(ranks)]
    for src, dst, chunk in [(e.src, e.dst, e.chunk) for e in replay.events] + stays:
        ends = _middle(src, chunk, ranks), _middle(dst, chunk, ranks)
        heights = ROWS[above] + TALL, ROWS[below]
        axes.plot(ends, heights, color=RANK[src % 8], linewidth=1.1, alpha=0.85)
