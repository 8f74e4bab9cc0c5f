"""Pictures of DDP: a step, its buckets over time, and the gradients of each rank."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.boxes import box, single, stacked
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PHASE

WIDE, HIGH = 0.86, 0.62  # a box, in columns and rows


def ddp_step(
    parts: Sequence[str], gradients: Sequence[str], mean: str, before: str, after: str
) -> Figure:
    """A column is a rank, time runs downward; only the all-reduce reaches over all columns.

    `parts`: of the batch; `mean`: of all `gradients`; `before` and `after`: the weights then.
    """
    ranks = len(parts)
    figure, axes = single(size=(3.3, 3.7))
    rows = {
        "weights": ([before] * ranks, PART["parameters"]),
        "its part of\nthe batch": (parts, GREY),
        "forward": (["loss"] * ranks, PHASE["forward"]),
        "backward": (gradients, PHASE["backward"]),
        "all-reduce": ([mean], PHASE["bucket"]),
        "optimizer": ([after] * ranks, PHASE["optimizer"]),
    }
    for rank in range(ranks):  # what belongs to one rank, above and below the all-reduce
        for top, height in ((-0.12, 3.98), (4.88, 0.86)):
            style.outline(axes, rank + 0.02, top, width=0.96, height=height)
    for row, (texts, color) in enumerate(rows.values()):
        wide = WIDE if len(texts) > 1 else ranks - 1 + WIDE
        for column, text in enumerate(texts):
            x, face = column + (1 - WIDE) / 2, (color, 0.45)
            box(axes, x, row, wide, HIGH, text, edge=color, face=face, linewidth=0.5)
        for rank in range(ranks * (row > 0)):
            ends = (rank + 0.5, row - 0.02), (rank + 0.5, row - 1 + HIGH + 0.02)
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GREY})
    axes.set_xticks([rank + 0.5 for rank in range(ranks)], [f"rank {r}" for r in range(ranks)])
    axes.xaxis.tick_top()
    axes.set_xlim(0, ranks)
    style.name_rows(axes, rows, offset=HIGH / 2)
    axes.set_ylim(len(rows) - 0.2, -0.2)
    style.table(axes)
    return figure


LANE, LINK = 0.8, 1.35  # height of a bar; where the lower lane begins


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
    figure, panels = stacked(strategies, (3.3, 1.12 * len(strategies) + 0.4), pad=3)
    pairs = pairwise([("", 0.0), *backward])
    pieces = [(0.0, "backward", name, begin, end) for (_, begin), (name, end) in pairs]
    for axes, travels in panels:
        sent = [
            (LINK, "bucket", str(number) if len(travels) > 1 else "all", travel.start, travel.end)
            for number, travel in enumerate(travels)
        ]
        for top, kind, name, start, end in pieces + sent:
            text = name if end - start > 0.054 * last else ""  # if there is room
            wide, face = end - start - 0.0036 * last, (PHASE[kind], 0.45)  # neighbours stay apart
            box(axes, start, top, wide, LANE, text, edge=PHASE[kind], face=face)
        for travel in travels:
            axes.plot([travel.full, travel.start], [LANE, LINK], ":", color=GREY, linewidth=1)
        done = max(backward[-1][1], travels[-1].end)
        axes.plot([done, done], [-0.15, LINK + LANE + 0.15], color=GREY, linewidth=1.5)
        text = f"step at\n{done:.0f} ms"
        axes.text(done + 0.01 * last, LANE / 2, text, fontsize=style.LABEL, va="center")
        axes.set_yticks([LANE / 2, LINK + LANE / 2], ["backward,\nlayer", "link,\nbucket"])
        axes.set(xlim=(0, 1.2 * last), ylim=(LINK + LANE + 0.2, -0.25))
        style.chart(axes, bare="y")
        axes.tick_params(axis="x", labelbottom=axes is figure.axes[-1])
    axes.set_xlabel("milliseconds since backward began", fontsize=style.LABEL)
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
        _strips(axes, [np.array([_strip(each[name]) for name in rows]) for each in ranks], scale)
        axes.set_title(title, fontsize=style.TITLE)
    last = grid[0, 2]
    for column, filled in enumerate(buckets.values()):
        for index, bucket in enumerate(filled):
            for row in map(rows.index, bucket):
                style.fill(last, column, row, COLORS[index % 6], width=0.94)
                style.write(last, column + 0.5, row + 0.53, str(index))
    last.set_xticks(np.arange(len(buckets)) + 0.5, list(buckets), rotation=90)
    last.set_xlim(-0.05, len(buckets) + 0.05)
    last.set_title("bucket", fontsize=style.TITLE)
    for axes in grid[0]:
        style.name_rows(axes, rows if axes is grid[0, 0] else [""] * len(rows))
        style.table(axes)
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
            style.outline(axes, left, row, width=BINS)
    axes.set_xticks([left + BINS / 2 for left in lefts], map(str, range(len(of_ranks))))
    axes.set_xlabel("rank", fontsize=style.LABEL)
