"""Pictures of several hosts: where ranks sit, how they live and die, and what checkpoints cost."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import note, rank_names, sketch
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS, PHASE, RANK, box

SEAT, GAP, NODE = 1.0, 0.06, 2.0  # widths of a rank and between two; a node's height
INCH = 0.845  # inches per unit: four ranks side by side are as wide as a phone


def seats(everyone: Sequence[Mapping[str, Any]]) -> Figure:
    """The ranks of each node in a row, with what `where_am_i` has found of each."""
    nodes = sorted({who["GROUP_RANK"] for who in everyone})
    width = max(who["LOCAL_WORLD_SIZE"] for who in everyone) * (SEAT + GAP) + GAP
    size, high = (INCH * width, 0.25 + INCH * NODE * len(nodes)), NODE * len(nodes) - 0.2
    figure, axes = sketch(size, (-0.03, width + 0.03), (high, -0.35))
    for number, node in enumerate(nodes):
        here = [who for who in everyone if who["GROUP_RANK"] == node]
        _node(axes, number * NODE, width, here)
    world = everyone[0]["WORLD_SIZE"]
    note(axes, 0, -0.22, f"WORLD_SIZE = {world}, for all")
    return figure


def _node(axes: Axes, top: float, width: float, here: Sequence[Mapping[str, Any]]) -> None:
    first = here[0]
    box(axes, 0, top, width, NODE - 0.25, linewidth=1, dashed=True)
    name = f"node {first['GROUP_RANK']}, address {first['address']}"
    note(axes, GAP, top + 0.2, name, fontsize=9)
    text = f"torchrun starts {len(here)} ranks; MASTER_ADDR = {first['MASTER_ADDR']}"
    box(axes, GAP, top + 0.38, width - 2 * GAP, 0.36, text, face=(GREY, 0.15), linewidth=0.5)
    if first["address"] == first["MASTER_ADDR"]:
        note(axes, width - GAP, top + 0.2, "all meet here", "right")
    for who in here:
        left = GAP + who["LOCAL_RANK"] * (SEAT + GAP)
        color = RANK[who["RANK"] % len(RANK)]
        box(axes, left, top + 0.94, SEAT, 0.66, edge=color, face=(color, 0.25), linewidth=1.2)
        middle = left + SEAT / 2
        style.write(axes, middle, top + 1.09, f"RANK {who['RANK']}", fontsize=9)
        style.write(axes, middle, top + 1.29, f"local rank {who['LOCAL_RANK']}")
        style.write(axes, middle, top + 1.47, f"→ cuda:{who['LOCAL_RANK']}")
        arrow = {"arrowstyle": "->", "color": GREY}
        axes.annotate("", (middle, top + 0.95), (middle, top + 0.74), arrowprops=arrow)


class Life(NamedTuple):
    """A part of a run between two starts."""

    name: str
    losses: Mapping[int, float]  # step → loss, for each step that was made
    killed: bool = False


def lives(undisturbed: Sequence[float], parts: Sequence[Life]) -> Figure:
    """Above the losses, below which steps each life has made; those made twice are hatched."""
    figure, grid = style.subplots(
        2, 1, size=(3.6, 3.3), sharex=True, height_ratios=(2.4, 0.25 + 0.3 * len(parts))
    )
    above, below = grid[:, 0]
    above.plot(undisturbed, color=GREY, lw=6, alpha=0.35)
    for number, life in enumerate(parts):
        color, steps = COLORS[number], life.losses.items()
        above.plot(*zip(*steps, strict=True), MARKERS[number], color=color, ms=3.5, mfc="none")
        first, last = min(life.losses), max(life.losses)
        width = last - first + 1
        box(below, first - 0.5, number + 0.1, width, 0.8, face=(color, 0.3), linewidth=0)
        at = first if width > 0.022 * len(life.name) * len(undisturbed) else last + 2
        note(below, at, number + 0.5, life.name)
        if life.killed:
            place = last + 0.5, number + 0.5
            below.plot(*place, "x", color=COLORS[1], ms=9, mew=2.5, clip_on=False)
        for later in parts[number + 1 :]:
            for step in life.losses.keys() & later.losses.keys():
                box(below, step - 0.5, number + 0.1, 1, 0.8, edge=color, linewidth=0.5)
    note(above, 1, 0.9, "wide line: undisturbed", "right", transform=above.transAxes)
    below.set(xlim=(-1, len(undisturbed)), ylim=(len(parts) + 0.05, -0.05), yticks=[])
    style.chart(above, y_label="loss")
    style.chart(below, x_label="step")
    below.spines["left"].set_visible(False)
    return figure


STEP, COPY, INDEX = 1.0, 0.85, 0.9  # lengths, in steps
WRITES = (2.6, 3.1, 2.8, 3.4)  # each rank's time to write


def async_save() -> Figure:
    """A save during training: who does what, what the folder has, and what a restart finds."""
    low, end = len(WRITES) + 1.25, 8.85
    figure, axes = sketch((3.6, 2.6), (-1.35, end), (low + 1.8, -0.1))
    copied = STEP + COPY
    written = copied + max(WRITES)
    renamed = written + INDEX
    bars = [(0, STEP, COPY - 0.05, "optimizer", "copy"), (1, written, INDEX, "optimizer", "index")]
    for number, start in enumerate([0, *(copied + step * STEP for step in range(7))], 8):
        bars.append((0, start, min(STEP, end - start) - 0.05, "backward", f"{number}"))
    for rank, took in enumerate(WRITES, 1):
        bars.append((rank, copied, took, "all-gather", "write, sync"))
    for row, start, length, phase, text in bars:
        color = PHASE[phase]
        box(axes, start, row, length, 0.8, text, edge=color, face=(color, 0.3))
    rows = ["training", *rank_names(len(WRITES))]
    for y, name in (*enumerate(rows), (low, "folder")):
        note(axes, -0.12, y + 0.4, name, "right")
    folder = {0: "step-4", copied: "step-4, unfinished-step-8", renamed: "step-4, step-8"}
    for start, text in folder.items():
        note(axes, start + 0.06, low + 0.4, text)
        axes.plot((start, start), (low, low + 0.8), color=GREY, lw=0.9)
    axes.plot((renamed, renamed), (0.9, low + 1.75), color=COLORS[1], lw=1.3, ls="--")
    note(axes, renamed - 0.1, low + 1.4, "a killed run resumes at  ← step-4", "right")
    note(axes, renamed + 0.1, low + 1.4, "step-8 →")
    note(axes, renamed + 0.15, 1.4, "rename", color=COLORS[1])
    return figure
