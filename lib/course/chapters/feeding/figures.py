"""Pictures of feeding the ranks: who draws which samples, and what averages make of them."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from course.drawing.sketches import Look, rank_names, sketch
from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.style import COLORS, GREY, PHASE, RANK, box

GAP = 0.5  # between steps


def epoch(drawn: Sequence[Sequence[int]], batch: int) -> Figure:
    """The samples that each rank has `drawn`, in order, cut into steps of `batch` samples.

    The cells of one step, over all ranks, have one colour: they are the global batch. A sample that
    was drawn before, by an earlier step or a smaller rank, is crossed out.
    """
    longest = max(len(own) for own in drawn)
    seen: set[int] = set()
    rows: list[list[Cell]] = [[] for _ in drawn]
    figure, axes = style.single(size=(0.36 * longest + 1.1, 0.28 * len(drawn) + 0.5))
    for place, rank in product(range(longest), range(len(drawn))):
        for sample in drawn[rank][place : place + 1]:  # none, if the rank has drawn fewer
            x, face = place + GAP * (place // batch), (COLORS[place // batch % 6], 0.4)
            rows[rank].append(Cell(str(sample), face, 0.94, x, linewidth=0))
            if sample in seen:
                axes.plot([x, x + 0.94], [rank + 0.96, rank + 0.04], color=COLORS[1], linewidth=1.6)
            seen.add(sample)
    cells(axes, rows, rank_names(len(drawn)), tall=0.92, on_top=True)
    steps = range(-(-longest // batch))
    middles = [step * (batch + GAP) + min(batch, longest - step * batch) / 2 for step in steps]
    axes.set_xticks(middles, [f"step {step + 1}" for step in steps])
    return figure


def batch_shares(parts: Sequence[Sequence[object]], local: int) -> Figure:
    """A batch cut into a part for each rank; each `local` ranks of one node stand in one row."""
    nodes, share = -(-len(parts) // local), max(1, *map(len, parts))
    width = local * (share + GAP)
    size, high = (0.19 * width, 0.74 * nodes), 3.4 * nodes - 0.8
    figure, axes = sketch(size, (-3, width - GAP + 0.1), (high, -0.1))
    for rank, part in enumerate(parts):
        left, top = rank % local * (share + GAP), 3.4 * (rank // local)
        for x, sample in enumerate(part):
            box(axes, left + x, top, 1, 1, str(sample), edge="black", face=(RANK[rank % 8], 0.5))
        middle, name = left + share / 2, f"rank {rank}\nlocal {rank % local}"
        style.write(axes, middle, top + 1.85, name)
        if rank % local == 0:
            style.write(axes, -1.7, top + 0.52, f"node {rank // local}")
    return figure


SPACE = 0.8  # between ranks, in tokens


def token_weights(lengths: Sequence[Sequence[int]]) -> Figure:
    """Each token's weight in a mean over ranks of means over micro-batches of their means.

    A column for each rank, a row for each micro-batch, a cell for each of its tokens.
    """
    micro, left = max(len(own) for own in lengths), 0.0
    rows: list[list[Cell]] = [[] for _ in range(micro)]
    middles = []
    for rank, own in enumerate(lengths):
        face = RANK[rank % len(RANK)], 0.45
        for row, tokens in zip(rows, own, strict=False):
            share = f"1/{len(lengths) * len(own) * tokens}"
            row += [Cell(share, face, at=left + token, linewidth=0.8) for token in range(tokens)]
        middles.append(left + max(3, *own) / 2)
        left += max(3, *own) + SPACE
    text, face = "one all-reduce, one optimizer step", (PHASE["bucket"], 0.25)
    names = [f"micro-batch {row + 1}" for row in range(micro)]
    figure, axes = style.single(size=(3.6, 0.42 * micro + 0.85))
    cells(axes, [*rows, [Cell(text, face, left - SPACE)]], [*names, ""], tall=0.74, on_top=True)
    axes.set_xticks(middles, rank_names(len(lengths)))
    return figure


CURVATURE = np.array([1.0, 6.0])
START = np.array([-3.0, 0.9])


def descend(rate: float, steps: int) -> np.ndarray:
    """The points [steps + 1, 2] of gradient descent in the valley: a step scales coordinates."""
    return START * (1 - rate * CURVATURE) ** np.arange(steps + 1)[:, None]


def two_paths(rates: Sequence[float], k: int) -> Figure:
    """A panel for each rate: k steps with it, and one step with k times the rate."""
    titles = {f"rate {rate:g}": rate for rate in rates}
    ends = [min(0, descend(k * rate, 1)[1, 1]) - 0.5 for rate in rates]  # below each panel's paths
    high = [1.3 - end for end in ends]
    size = 3.7, 0.9 * sum(high) + 0.8
    figure, panels = style.stacked(titles, size, sharex=True, height_ratios=high)
    x, y = np.meshgrid(np.linspace(-3.4, 0.6, 80), np.linspace(min(ends), 1.3, 80))
    height = (CURVATURE[0] * x**2 + CURVATURE[1] * y**2) / 2
    for (axes, rate), end in zip(panels, ends, strict=True):
        axes.contour(x, y, height, levels=8, colors=GREY, linewidths=0.5)
        axes.plot(0, 0, "x", color=GREY, markersize=6)
        small, large = descend(rate, k), descend(k * rate, 1)
        look: Look = {"markersize": 4, "linewidth": 1.4}
        axes.plot(*small.T, "o-", color=COLORS[0], label=f"{k} small steps", **look)
        axes.plot(*large.T, "s--", color=COLORS[1], label="one large step", **look)
        axes.set(xlim=(-3.4, 0.6), ylim=(end, 1.3))
        style.table(axes)
    style.legend_below(figure, 2)
    return figure
