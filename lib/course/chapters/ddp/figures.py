"""Pictures of DDP: a step, and its buckets over time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from course.drawing.sketches import note, rank_names
from minidist.plots import style
from minidist.plots.cells import Cell, cells, lanes
from minidist.plots.style import GREY, PART, PHASE

WIDE, HIGH = 0.86, 0.62  # a box, in columns and rows


def ddp_step(
    parts: Sequence[str], gradients: Sequence[str], mean: str, before: str, after: str
) -> Figure:
    """A column is a rank, time runs downward; only the all-reduce reaches over all columns.

    `parts`: of the batch; `mean`: of all `gradients`; `before` and `after`: the weights then.
    """
    ranks = len(parts)
    table = {
        "weights": ([before] * ranks, PART["parameters"]),
        "its part of\nthe batch": (parts, GREY),
        "forward": (["loss"] * ranks, PHASE["forward"]),
        "backward": (gradients, PHASE["backward"]),
        "all-reduce": ([mean], PHASE["bucket"]),
        "optimizer": ([after] * ranks, PHASE["optimizer"]),
    }
    gap, rows = 1 - WIDE, list[list[Cell]]()
    for texts, color in table.values():
        wide, places = ranks / len(texts) - gap, enumerate(texts)
        rows.append(
            [Cell(text, (color, 0.45), wide, x + gap / 2, edge=color) for x, text in places]
        )
    figure, axes = style.single(size=(3.3, 3.7))
    cells(axes, rows, table, rank_names(ranks), tall=HIGH, on_top=True)
    for rank in range(ranks):  # what belongs to one rank, above and below the all-reduce
        for top, height in ((0.07, 3.9), (5.07, 0.86)):
            style.box(axes, rank + 0.02, top, 0.96, height, linewidth=0.5)
        for row in range(1, len(rows)):
            ends = (rank + 0.5, row + 0.17), (rank + 0.5, row - 0.17)
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GREY})
    return figure


class Travel(NamedTuple):
    """A bucket: when its last gradient is there, and when its all-reduce begins and ends."""

    full: float
    start: float
    end: float


def bucket_timeline(
    backward: Sequence[tuple[str, float]], strategies: Mapping[str, Sequence[Travel]]
) -> Figure:
    """For each strategy, above what backward computes, below what the link carries.

    A dotted line leads from when a bucket is full to when it leaves, a solid one marks when the
    optimizer may step. `backward`: its pieces in order, with their ends; all in milliseconds.
    """
    last = max(travels[-1].end for travels in strategies.values())

    def cell(phase: str, text: str, start: float, end: float) -> Cell:
        color, room = PHASE[phase], end - start > 0.054 * last
        return Cell(text if room else "", (color, 0.45), end - start, start, edge=color)

    pairs = pairwise([("", 0.0), *backward])
    pieces = [cell("backward", name, begin, end) for (_, begin), (name, end) in pairs]
    panels = {}
    for title, travels in strategies.items():
        names = map(str, range(1, len(travels) + 1)) if len(travels) > 1 else ["all"]
        named = zip(names, travels, strict=True)
        sent = [cell("bucket", name, each.start, each.end) for name, each in named]
        panels[title] = {"backward,\nlayer": pieces, "link,\nbucket": sent}
    size, x_label = (3.3, 1.12 * len(panels) + 0.4), "milliseconds since backward began"
    figure = lanes(panels, size, x_label=x_label, numbers=True)
    for axes, travels in zip(figure.axes, strategies.values(), strict=True):
        for travel in travels:
            axes.plot([travel.full, travel.start], [0.88, 1.12], ":", color=GREY, linewidth=1)
        done = max(backward[-1][1], travels[-1].end)
        axes.plot([done, done], [0, 2], color=GREY, linewidth=1.5)
        note(axes, done + 0.01 * last, 0.5, f"step at\n{done:.0f} ms", fontsize=style.LABEL)
    return figure
