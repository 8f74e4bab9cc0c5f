"""Pictures of grids: what a tensor degree costs, and which grid wins where."""

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.drawing.sketches import Look
from course.pages.rates import JOBS
from course.pages.recorded import recorded
from minidist.formulas.inputs import Grid
from minidist.formulas.rules import tensor_loss
from minidist.planner.hardware import H100
from minidist.plots import style
from minidist.plots.curves import Curve, curves
from minidist.plots.style import COLORS, DASHES, GREY, LABEL

RANKS = (1, 2, 4, 8)
KINDS = {  # what a grid has beside replicas, the rarest first
    "pipeline": COLORS[3],
    "tensor": COLORS[2],
    "context": COLORS[5],
    "data alone": COLORS[0],
}


def rates_kept() -> dict[int, dict[int, float]]:
    """Width → ranks → the part of its rate that a layer kept on one H100, split among as many.

    In bf16, on 8,192 tokens; medians of these as one sequence, and as two, four and eight.
    """
    rates = dict[tuple[int, int, int], float]()
    for row in recorded("gpu_grid")["rows"]:
        if row.get("what") == "layer" and row["way"] == "bf16" and not row["checkpointed"]:
            rates[row["width"], row["tensor"], row["sequences"]] = row["tflops"]
    kept = dict[int, dict[int, list[float]]]()
    for (width, ranks, sequences), rate in rates.items():
        shares = kept.setdefault(width, {}).setdefault(ranks, [])
        shares.append(rate / rates[width, 1, sequences])
    return {
        width: {ranks: median(shares) for ranks, shares in of.items()} for width, of in kept.items()
    }


def split_losses() -> Figure:
    """The rate that a rank of a tensor group keeps, measured and by rule; and all that is lost."""
    measured, kept, lost = rates_kept(), [], []
    for place, (name, job) in enumerate(JOBS.items()):
        costs = [tensor_loss(job, H100, ranks) for ranks in RANKS]
        rule = [100 / (1 + slower) for _, slower in costs]
        seen = [100 * measured[job.width][ranks] for ranks in RANKS]
        kept += [Curve("", RANKS, rule, place, predicted=True), Curve(name, RANKS, seen, place)]
        lost.append(Curve(name, RANKS, [100 * sum(each) for each in costs], place, predicted=True))
    panels = {"% of the unsplit rate": kept, "lost, in % of the compute": lost}
    ticks: dict[float, str] = {ranks: f"{ranks}" for ranks in RANKS}
    figure = curves(
        panels, x_label="ranks that share a layer", x_ticks=ticks, y_log=False, one_scale=False
    )
    for line in figure.axes[0].get_lines()[1::2]:
        line.set_linestyle("none")
    return figure


def kind(grid: Grid) -> str:
    """What a grid has beside replicas, one of `KINDS`."""
    for name in ("pipeline", "tensor", "context"):
        if getattr(grid, name) > 1:
            return name
    return "data alone"


def degrees(grid: Grid) -> str:
    """The degrees of a grid but its replicas', in a small cell."""
    ways = {"C": grid.context, "T": grid.tensor, "P": grid.pipeline}
    names = [f"{name}{degree}" for name, degree in ways.items() if degree > 1]
    return "\n".join([" ".join(names[:2]), *names[2:]])


def regimes(
    found: Sequence[Sequence[Grid]],
    tokens: Sequence[int],
    clusters: Sequence[int],
    rules: Sequence[Callable[[int], float]],
) -> Figure:
    """The fastest grid in each cell, GPUs to the right, tokens per GPU upward; rules as lines.

    `rules`: each a number of tokens per GPU, by the number of GPUs; they are counted from 1.
    """
    figure, axes = style.single(size=(3.5, 3.3))
    for row, line in enumerate(found):
        for column, grid in enumerate(line):
            look: Look = {"fc": (KINDS[kind(grid)], 0.3), "ec": (GREY, 0.4), "lw": 0.6}
            axes.add_patch(Rectangle((column, row), 1, 1, **look))
            pale = tuple(0.7 + 0.3 * part for part in to_rgb(KINDS[kind(grid)]))
            said = degrees(grid)  # most lines pass above it, others behind it
            box = {"boxstyle": "square,pad=0.05", "fc": pale, "lw": 0}
            height = row + (0.3 if "\n" in said else 0.17)
            style.write(axes, column + 0.5, height, said, LABEL, bbox=box, zorder=3)
    width, step = len(clusters), np.log2(clusters[1] / clusters[0])
    across = np.arange(0, width + 0.25, 0.5)
    for place, rule in enumerate(rules):
        counts = [rule(round(clusters[0] * 2 ** (step * (x - 0.5)))) for x in across]
        high = np.log2(np.array(counts) / tokens[0]) + 0.5
        axes.plot(across, high, color="black", lw=1.4, ls=DASHES[place])
        mark: Look = {"fontsize": LABEL, "va": "center", "color": GREY, "clip_on": False}
        axes.text(width + 0.08, high[-1], f"{place + 1}", **mark)
    axes.set(xlim=(0, width), ylim=(0, len(tokens)))
    axes.set_xticks(np.arange(width) + 0.5, [f"{ranks:,}" for ranks in clusters])
    axes.set_yticks(np.arange(len(tokens)) + 0.5, [f"{count:,}" for count in tokens])
    style.chart(axes, x_label="GPUs", title="tokens per GPU and step")
    names = {name: {"fc": (KINDS[name], 0.3), "ec": GREY} for name in reversed(KINDS)}
    style.legend_below(figure, 4, names)
    return figure
