"""Pictures of feeding the ranks: who draws which samples, and what averages make of them."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
from matplotlib.figure import Figure

from course.drawing.boxes import Look, box, rank_names, single, sketch, stacked, table_rows
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PHASE, RANK

GAP = 0.5  # between steps


def epoch(drawn: Sequence[Sequence[int]], batch: int) -> Figure:
    """The samples that each rank has `drawn`, in order, cut into steps of `batch` samples.

    The cells of one step, over all ranks, have one colour: they are the global batch. A sample that
    was drawn before, by an earlier step or a smaller rank, is crossed out.
    """
    longest = max(len(own) for own in drawn)
    figure, axes = single(size=(0.36 * longest + 1.1, 0.28 * len(drawn) + 0.5))
    seen: set[int] = set()
    for place, rank in product(range(longest), range(len(drawn))):
        for sample in drawn[rank][place : place + 1]:  # none, if the rank has drawn fewer
            x = place + GAP * (place // batch)
            style.fill(axes, x, rank, COLORS[place // batch % 6], width=0.94, height=0.92)
            style.write(axes, x + 0.47, rank + 0.48, str(sample))
            if sample in seen:
                axes.plot([x, x + 0.94], [rank + 0.92, rank], color=COLORS[1], linewidth=1.6)
            seen.add(sample)
    steps = range(-(-longest // batch))
    middles = [step * (batch + GAP) + min(batch, longest - step * batch) / 2 for step in steps]
    axes.set_xticks(middles, [f"step {step + 1}" for step in steps])
    axes.set_xlim(-0.1, longest + GAP * (len(steps) - 1) + 0.1)
    axes.xaxis.tick_top()
    style.name_rows(axes, rank_names(len(drawn)), offset=0.46)
    style.table(axes)
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
            look: Look = {"edge": "black", "face": (RANK[rank % 8], 0.5)}
            box(axes, left + x, top, 1, 1, str(sample), **look)
        style.write(axes, left + share / 2, top + 1.5, f"rank {rank}")
        style.write(axes, left + share / 2, top + 2.15, f"local {rank % local}")
        if rank % local == 0:
            style.write(axes, -1.7, top + 0.52, f"node {rank // local}")
    return figure


SPACE = 0.8  # between ranks, in tokens


def token_weights(lengths: Sequence[Sequence[int]]) -> Figure:
    """Each token's weight in a mean over ranks of means over micro-batches of their means.

    A column for each rank, a row for each micro-batch, a cell for each of its tokens.
    """
    micro = max(len(own) for own in lengths)
    figure, axes = single(size=(3.6, 0.42 * micro + 0.85))
    left = 0.0
    for rank, own in enumerate(lengths):
        width = max(3, *own)
        style.write(axes, left + width / 2, -0.25, f"rank {rank}", style.TITLE)
        for row, tokens in enumerate(own):
            share = f"1/{len(lengths) * len(own) * tokens}"
            for cell in range(tokens):
                box(axes, left + cell, row, 1, 0.74, share, face=(RANK[rank % len(RANK)], 0.45))
        left += width + SPACE
    text, face = "one all-reduce, one optimizer step", (PHASE["bucket"], 0.25)
    box(axes, 0, micro + 0.05, left - SPACE, 0.62, text, face=face)
    names = [f"micro-batch {row + 1}" for row in range(micro)]
    table_rows(axes, names, left - SPACE + 0.1, left=-0.1, offset=0.37)
    axes.set_ylim(micro + 0.75, -0.55)
    return figure


def masks(panels: Mapping[str, torch.Tensor]) -> Figure:
    """A panel for each way to seed: [ranks, samples, units], true where a unit is dropped."""
    ranks, samples, units = next(iter(panels.values())).shape
    figure, grid = style.subplots(len(panels), ranks, size=(3.7, 0.85 * len(panels) + 0.1))
    for row, (title, dropped) in zip(grid, panels.items(), strict=True):
        for rank, axes in enumerate(row):
            for sample, unit in dropped[rank].nonzero().tolist():
                style.fill(axes, unit, sample, RANK[rank % len(RANK)], alpha=0.9)
            style.outline(axes, 0, 0, GREY, width=units, height=samples, linewidth=0.8)
            axes.set(xlim=(-0.1, units + 0.1), ylim=(samples + 0.1, -0.1), xticks=[], yticks=[])
            axes.set_aspect("equal")
            axes.set_xlabel(f"rank {rank}", fontsize=style.TITLE)
            style.table(axes)
        row[0].set_title(title, fontsize=style.TITLE, loc="left")
    return figure


def spreads(values: torch.Tensor) -> Figure:
    """`values` [ranks, samples], a row of points for each rank and one for all, and deviations."""
    ranks, edge = len(values), float(values.max()) + 0.5
    figure, axes = single(size=(3.7, 0.42 * ranks + 0.9))
    rows = [{rank: own} for rank, own in enumerate(values)] + [dict(enumerate(values))]
    for row, parts in enumerate(rows):
        own, y = torch.cat([*parts.values()]), row + 0.5
        mean, variance = float(own.mean()), float(own.var(correction=0))
        wide = variance**0.5
        axes.plot([mean - wide, mean + wide], [y, y], color=GREY, linewidth=7, alpha=0.4)
        axes.plot([mean], [y], marker="|", markersize=14, markeredgewidth=2.2, color=GREY)
        for rank, part in parts.items():
            axes.plot(part, [y] * len(part), "o", color=RANK[rank % len(RANK)], markersize=4)
        axes.text(edge, y, f"{variance:.2f}", fontsize=style.LABEL, va="center")
    axes.text(edge, -0.1, "variance", fontsize=style.LABEL, va="center")
    axes.axhline(ranks, color=GREY, linewidth=0.6)
    style.name_rows(axes, [*rank_names(ranks), "all"])
    axes.set(xlim=(float(values.min()) - 0.2, edge + 1.1), xticks=[-2, -1, 0, 1, 2])
    style.table(axes)
    return figure


CURVATURE = np.array([1.0, 6.0])
START = np.array([-3.0, 0.9])


def descend(rate: float, steps: int) -> np.ndarray:
    """The points [steps + 1, 2] of gradient descent in the valley: a step scales coordinates."""
    return START * (1 - rate * CURVATURE) ** np.arange(steps + 1)[:, None]


def two_paths(rates: Sequence[float], k: int) -> Figure:
    """A panel for each rate: k steps with it, and one step with k times the rate."""
    titles = {f"rate {rate:g}": rate for rate in rates}
    figure, panels = stacked(titles, (3.7, 1.45 * len(rates)), sharex=True)
    x, y = np.meshgrid(np.linspace(-3.4, 1.4, 80), np.linspace(-2.1, 1.2, 80))
    height = (CURVATURE[0] * x**2 + CURVATURE[1] * y**2) / 2
    for axes, rate in panels:
        axes.contour(x, y, height, levels=8, colors=GREY, linewidths=0.5)
        axes.plot(0, 0, "x", color=GREY, markersize=6)
        small, large = descend(rate, k), descend(k * rate, 1)
        look: Look = {"markersize": 4, "linewidth": 1.4}
        axes.plot(*small.T, "o-", color=COLORS[0], label=f"{k} small steps", **look)
        axes.plot(*large.T, "s--", color=COLORS[1], label="one large step", **look)
        axes.set(xlim=(-3.4, 1.4), ylim=(-2.1, 1.2), xticks=[], yticks=[])
        style.table(axes)
    style.legend_below(figure, 2)
    return figure


BATCH, TALK = 1.0, 0.35  # durations of a batch and of its all-reduce
FORWARD, ALL_REDUCE = (PHASE["forward"], 0.5), (PHASE["reduce-scatter"], 0.35)


def uneven(batches: Sequence[int]) -> Figure:
    """Two timelines of ranks with so many batches: as they are, and under `join`."""
    size = 3.7, 0.86 * len(batches) + 1.5
    figure, panels = stacked({"without": False, "with join()": True}, size, sharex=True)
    least, most = min(batches), max(batches)
    for axes, joined in panels:
        for rank, own in enumerate(batches):
            for step in range(most if joined else min(own, least + 1)):
                left, y = step * (BATCH + TALK), rank + 0.12
                text, face = (f"{step + 1}", FORWARD) if step < own else ("zeros", None)
                box(axes, left, y, BATCH, 0.76, text, face=face)
                if joined or step < least:
                    box(axes, left + BATCH, y, TALK, 0.76, "Σ", face=ALL_REDUCE)
            if not joined:  # who has another batch waits for the gradients of those without one
                x, text = (BATCH, "waits …") if own > least else (0, "has ended")
                x += least * (BATCH + TALK) + 0.15
                axes.text(x, rank + 0.5, text, fontsize=style.LABEL, va="center")
        table_rows(axes, rank_names(len(batches)), most * (BATCH + TALK) + 0.05)
    axes.set_xlabel("time", fontsize=style.TITLE, loc="right")
    return figure
