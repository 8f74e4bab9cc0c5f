"""Pictures of DDP: a step, its buckets over time, and the gradients of each rank."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import note, rank_names
from minidist.plots import style
from minidist.plots.cells import Cell, cells, lanes
from minidist.plots.style import COLORS, GREY, PART, PHASE

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


BINS = 8  # parts of a gradient that are shown, each by the mean of its elements


def gradients(
    own: Sequence[Mapping[str, torch.Tensor]],
    averaged: Sequence[Mapping[str, torch.Tensor]],
    buckets: Mapping[str, Sequence[Sequence[str]]],
) -> Figure:
    """Gradients of every parameter on every rank, before and after they were averaged.

    A row is a parameter, in the order of the last strategy. A strip is its gradient on one rank:
    orange above zero, purple below, by the row's own scale. `own`, `averaged`: of each rank, its
    gradients by name; `buckets`: strategy → names of the parameters in each bucket, in order.
    """
    rows = [name for bucket in list(buckets.values())[-1] for name in bucket]
    size, widths = (3.4, 0.24 * len(rows) + 1.2), [len(own), len(own), 0.6 * len(buckets)]
    figure, grid = style.subplots(1, 3, size=size, width_ratios=widths)
    scale = np.array([max(abs(_strip(each[name])).max() for each in own) for name in rows])
    for axes, title, ranks in zip(grid[0], ("before", "after"), (own, averaged), strict=False):
        names = rows if axes is grid[0, 0] else [""] * len(rows)
        cells(axes, [()] * len(rows), names, title=title)
        _strips(axes, [np.array([_strip(each[name]) for name in rows]) for each in ranks], scale)
    places: list[list[Cell]] = [[] for _ in rows]
    for column, filled in enumerate(buckets.values()):
        for number, bucket in enumerate(filled, 1):
            for name in bucket:
                face = COLORS[(number - 1) % 6], 0.4
                places[rows.index(name)].append(Cell(str(number), face, 0.94, column, linewidth=0))
    cells(grid[0, 2], places, [""] * len(rows), list(buckets), title="bucket")
    grid[0, 2].tick_params(axis="x", rotation=90)
    return figure


def _strip(gradient: torch.Tensor) -> np.ndarray:
    """The means of BINS parts; of fewer elements, each is shown several times."""
    flat = gradient.detach().flatten().double().cpu()
    if len(flat) < BINS:
        return flat[torch.arange(BINS) * len(flat) // BINS].numpy() if len(flat) else np.zeros(BINS)
    return np.array([part.mean().item() for part in flat.tensor_split(BINS)])


def _strips(axes: Axes, of_ranks: Sequence[np.ndarray], scale: np.ndarray) -> None:
    lefts = [rank * (BINS + 1) for rank in range(len(of_ranks))]  # a gap between ranks
    for left, strips in zip(lefts, of_ranks, strict=True):
        values = strips / np.maximum(scale, 1e-30)[:, None]
        edges = np.arange(BINS + 1) + left, np.arange(len(scale) + 1)
        # Rasterized, or seams show between the cells.
        axes.pcolormesh(*edges, values, cmap="PuOr_r", vmin=-1, vmax=1, rasterized=True)
        for row in range(len(scale)):
            style.box(axes, left, row, BINS, linewidth=0.5)
    axes.set_xlim(-0.5, lefts[-1] + BINS + 0.5)
    axes.set_xticks([left + BINS / 2 for left in lefts], map(str, range(len(of_ranks))))
    axes.set_xlabel("rank", fontsize=style.LABEL)
