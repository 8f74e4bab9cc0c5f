"""Pictures of several hosts: where ranks sit, how they live and die, and what checkpoints cost."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import loss_above, note, rank_names, sketch
from minidist.plots import style
from minidist.plots.cells import Cell, cells, ending, numbered
from minidist.plots.curves import Curve, curves
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
    note(axes, GAP, top + 0.2, name)
    text = f"torchrun starts {len(here)} ranks; MASTER_ADDR = {first['MASTER_ADDR']}"
    box(axes, GAP, top + 0.38, width - 2 * GAP, 0.36, text, face=(GREY, 0.15), linewidth=0.5)
    if first["address"] == first["MASTER_ADDR"]:
        note(axes, width - GAP, top + 0.2, "all meet here", "right")
    for who in here:
        left = GAP + who["LOCAL_RANK"] * (SEAT + GAP)
        color = RANK[who["RANK"] % len(RANK)]
        box(axes, left, top + 0.94, SEAT, 0.66, edge=color, face=(color, 0.25), linewidth=1.2)
        middle = left + SEAT / 2
        style.write(axes, middle, top + 1.09, f"RANK {who['RANK']}", style.TITLE)
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
    figure, above, below = loss_above(
        range(len(undisturbed)), undisturbed, len(parts), "undisturbed"
    )
    rows = []
    for number, life in enumerate(parts):
        color, steps = COLORS[number], life.losses.items()
        above.plot(*zip(*steps, strict=True), MARKERS[number], color=color, ms=3.5, mfc="none")
        first, last = min(life.losses), max(life.losses)
        again = {
            step for later in parts[number + 1 :] for step in life.losses.keys() & later.losses
        }
        made = Cell("", (color, 0.3), last - first + 1, first - 0.5, linewidth=0)
        rows.append([made, *(Cell(at=step - 0.5, edge=color) for step in again)])
        if life.killed:
            place = last + 0.5, number + 0.5
            below.plot(*place, "x", color=COLORS[1], ms=9, mew=2.5, clip_on=False)
    cells(below, rows, [life.name for life in parts], tall=0.8, x_label="step")
    numbered(below)
    below.set_xlim(-1, len(undisturbed))
    return figure


def time_lost(model: Mapping[float, Any], simulated: Mapping[float, float], best: float) -> Figure:
    """The share of time lost over the minutes between saves: a model's parts, and a simulation.

    `model`: minutes → `saving`, `again` and `total`, as `lost` has them.
    """
    minutes = [*model]

    def predicted(name: str, part: str, color: int) -> Curve:
        return Curve(
            name, minutes, [100 * getattr(each, part) for each in model.values()], color, True
        )

    lines = [
        predicted("saving", "saving", 2),
        predicted("restarts, repeated work", "again", 1),
        predicted("total", "total", 0),
        Curve("", [*simulated], [100 * share for share in simulated.values()], 0),
    ]
    figure = curves(
        {"% of the time": lines},
        x_label="minutes of training between saves",
        x_ticks={minute: f"{minute}" for minute in (1, 3, 10, 30, 100)},
        marks={f"best: {best:.0f} min": best},
        y_log=False,
    )
    figure.axes[0].lines[len(lines) - 1].set_linestyle("none")  # circles without a line
    return figure


STEP, COPY, INDEX = 1.0, 0.85, 0.9  # lengths, in steps
WRITES = (2.6, 3.1, 2.8, 3.4)  # each rank's time to write


def async_save() -> Figure:
    """A save during training: who does what, what the folder has, and what a restart finds."""
    copied, end = STEP + COPY, 8.85
    written = copied + max(WRITES)
    renamed = written + INDEX
    starts = [0, *(copied + step * STEP for step in range(7))]
    steps = [_phase("backward", f"{n}", at, min(STEP, end - at)) for n, at in enumerate(starts, 8)]
    rows = {"training": [*steps, _phase("optimizer", "copy", STEP, COPY)]}
    for name, took in zip(rank_names(len(WRITES)), WRITES, strict=True):
        rows[name] = [_phase("all-gather", "write, sync", copied, took)]
    rows["rank 0"] += [_phase("optimizer", "index", written, INDEX)]
    folder = {0: "step-4", copied: "step-4, unfinished-step-8", renamed: "step-4, step-8"}
    rows["folder"] = [ending(text)._replace(at=at) for at, text in folder.items()]
    figure, axes = style.single(size=(3.7, 2.6))
    cells(axes, rows, tall=0.8)
    low = len(rows) - 1
    for at in folder:
        axes.plot((at, at), (low + 0.1, low + 0.9), color=GREY, lw=0.9)
    axes.plot((renamed, renamed), (1, low + 1.8), color=COLORS[1], lw=1.3, ls="--")
    note(axes, renamed - 0.1, low + 1.5, "a killed run resumes at  ← step-4", "right")
    note(axes, renamed + 0.1, low + 1.5, "step-8 →")
    note(axes, renamed + 0.15, 1.5, "rename", color=COLORS[1])
    axes.set(xlim=(-0.05, end), ylim=(low + 1.9, 0))
    return figure


def _phase(phase: str, text: str, at: float, takes: float) -> Cell:
    color = PHASE[phase]
    return Cell(text, (color, 0.3), takes - 0.05, at, edge=color, linewidth=0.8)
