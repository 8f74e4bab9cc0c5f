"""Pictures of MapReduce: map, shuffle and reduce, the death of a worker, and a step as a job."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import Look, names_left, rank_names, sketch
from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.style import COLORS, GREY, PART, PART_HATCH, PHASE, RANK, box
from minidist.schedule.replay import Replay

WIDE, GAP = 1.0, 0.1  # a map task, and the gap between two
SLOT, BOX = 0.26, 1.1  # heights of a slot for a reducer, and of a task
MAPPED, REDUCED = 1.4, 2.85  # tops of the slots and the reducers


def map_shuffle_reduce(
    inputs: Sequence[str], boxes: Sequence[Sequence[int]], parts: Sequence[Mapping[str, Any]]
) -> Figure:
    """Each map task with its text, a line from each of its boxes to a reducer.

    `boxes[m][r]`: how many pairs map task m has for reducer r, which makes `parts[r]` of them.
    """
    across = len(inputs) * (WIDE + GAP) - GAP
    figure, axes = sketch((3.45, 3.7), (-0.85, across + 0.05), (REDUCED + 1.2, 0.1))
    wide = (across - (len(parts) - 1) * 2 * GAP) / len(parts)
    for r, part in enumerate(parts):
        x = r * (wide + 2 * GAP)
        text = f"reducer {r}\n\n{_words(part)}"
        box(axes, x, REDUCED, wide, 1.15, text, face=(RANK[r], 0.3), linewidth=0.5)
    for m, (text, row) in enumerate(zip(inputs, boxes, strict=True)):
        left = m * (WIDE + GAP)
        lines = textwrap.wrap(text, 9)
        box(axes, left, 0.2, WIDE, BOX, "\n".join([f"task {m}", "", *lines]))
        for r, count in enumerate(row):
            x, width = left + r * WIDE / len(row), WIDE / len(row)
            box(axes, x, MAPPED, width, SLOT, str(count), face=(RANK[r], 0.3), linewidth=0.5)
            if count:
                ends = x + width / 2, r * (wide + 2 * GAP) + wide * (m + 1) / (len(inputs) + 1)
                heights = MAPPED + SLOT, REDUCED
                (line,) = axes.plot(ends, heights, color=RANK[r], linewidth=0.7 + 0.5 * count)
                line.set(alpha=0.8, solid_capstyle="butt")
    middle = (MAPPED + SLOT + REDUCED) / 2
    names_left(axes, -0.12, {0.75: "map", middle: "shuffle", 3.42: "reduce"})
    return figure


def _words(part: Mapping[str, Any]) -> str:
    """A reducer's output, with no break between a key and its value."""
    pairs = ", ".join(f"{key}_{value}" for key, value in part.items())
    return "\n".join(textwrap.wrap(pairs, 13)).replace("_", " ")


BLOCK, LOST = 0.9, COLORS[1]
STATE = {"parameters": "weights", "optimizer state": "optimizer", "gradients": "gradient"}
FATES = "kept by\nsurvivors", "", "lost: step\nin flight", "lost: group"


def after_a_death(ranks: int, dead: int) -> Figure:
    """Ranks in their places with what each holds; the dead one crossed out, their group cut.

    Whole boxes are in a survivor's memory; what is lost has a dashed outline and a cross.
    """
    rows: list[list[Cell]] = []
    for part, name in STATE.items():
        look: Look = {"edge": (PART[part], 0.4), "hatch": PART_HATCH[part]}
        kept = Cell(name, (PART[part], 0.3), BLOCK, **look)
        lost = Cell(name, None, BLOCK, edge=LOST, linewidth=1, dashed=True)
        gone = [rank == dead or part == "gradients" for rank in range(ranks)]
        rows.append([(lost if gone[rank] else kept)._replace(at=rank) for rank in range(ranks)])
    rows.append([])
    for row, fate in zip(rows, FATES, strict=True):
        row.append(Cell(fate, wide=0, at=ranks))
    figure, axes = style.single(size=(3.45, 2.0))
    cells(axes, rows, columns=rank_names(ranks), tall=0.84, on_top=True)
    for rank in range(ranks):
        x, dies = rank + BLOCK / 2, rank == dead
        if rank + 1 < ranks:
            cut = dead in (rank, rank + 1)
            look = {"color": LOST, "ls": ":"} if cut else {"color": GREY, "ls": "-"}
            axes.plot((x + 0.1, x + 0.9), (3.5, 3.5), linewidth=1.6, **look)
            if cut:
                axes.plot(x + 0.5, 3.5, "x", color=LOST, markersize=8, markeredgewidth=2)
        axes.plot(x, 3.5, "x" if dies else "o", color=LOST if dies else GREY)
    return figure


SPAN, SPACE, TALL = 1.0, 0.16, 0.34
OWN, SUMMED, WHOLE = 1.1, 2.2, 3.3  # the tops of gradients, of their sums, and of all sums


def step_as_reduce(scattered: Replay, gathered: Replay) -> Figure:
    """Samples, gradients in chunks, their sums, the whole sum and the weights, on each rank.

    The messages of `scattered`, a reduce-scatter, are the shuffle; those of `gathered` follow.
    """
    ranks = scattered.ranks
    right = ranks * (SPAN + SPACE) - SPACE + 0.05
    figure, axes = sketch((3.45, 4.3), (-0.95, right), (4.25, -0.4))
    for rank in range(ranks):
        left = rank * (SPAN + SPACE)
        style.write(axes, left + SPAN / 2, -0.2, f"rank {rank}", style.TITLE)
        box(axes, left, 0, SPAN, TALL, f"shard {rank}")
        for x, text, phase in ((left, "fwd", "forward"), (left + SPAN / 2, "bwd", "backward")):
            face = PHASE[phase], 0.4
            box(axes, x, 0.55, SPAN / 2, TALL, text, face=face, linewidth=0)
        _chunks(axes, left, OWN, [str(chunk) for chunk in range(ranks)])
        _chunks(axes, left, SUMMED, ["Σ" if chunk == rank else "" for chunk in range(ranks)])
        _chunks(axes, left, WHOLE, ["Σ"] * ranks)
        face = PART["parameters"], 0.45
        box(axes, left, 3.85, SPAN, TALL, "weights", face=face, linewidth=0)
    _lines(axes, scattered, OWN, SUMMED)
    _lines(axes, gathered, SUMMED, WHOLE)
    names = {0.45: "map", 1.82: "shuffle", 2.37: "reduce", 2.92: "return", 4.02: "step"}
    names_left(axes, -0.12, names)
    return figure


def _chunks(axes: Axes, left: float, top: float, texts: Sequence[str]) -> None:
    """Cells of a gradient; the rank holds those with a text."""
    width, color = SPAN / len(texts), PART["gradients"]
    box(axes, left, top, SPAN, TALL, linewidth=0.5)
    for chunk, text in enumerate(texts):
        if text:
            cell = left + chunk * width, top, width, TALL
            look: Look = {
                "face": (color, 0.3),
                "edge": (color, 0.35),
                "hatch": PART_HATCH["gradients"],
            }
            box(axes, *cell, text, fontsize=9, **look)


def _lines(axes: Axes, replay: Replay, above: float, below: float) -> None:
    """Every message, in its sender's colour, and what stays where it is."""
    stays = [(rank, rank, rank) for rank in range(replay.ranks)]
    for src, dst, chunk in [(e.src, e.dst, e.chunk) for e in replay.events] + stays:
        ends = [r * (SPAN + SPACE) + (chunk + 0.5) * SPAN / replay.ranks for r in (src, dst)]
        axes.plot(ends, (above + TALL, below), color=RANK[src % 8], linewidth=1.1, alpha=0.85)
