"""Pictures of what each rank has: its gradients before and after averaging, its shards of state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS

BINS = 16  # parts of a gradient that are shown, each by the mean of its elements
Held = Mapping[str, Sequence[Sequence[bool]]]  # part → of each rank → of each shard: is it there?
GAP = 0.8  # between two parts, in widths of a shard


def gradients(
    own: Sequence[Mapping[str, torch.Tensor]],
    averaged: Sequence[Mapping[str, torch.Tensor]],
    buckets: Mapping[str, Sequence[Sequence[str]]],
) -> Figure:
    """Gradients of every parameter on every rank, before and after they were averaged.

    A row is a parameter. A strip is its gradient on one rank, from the first element to the last:
    orange above zero, purple below, white at zero, by the row's own scale. To the right stands the
    number of the bucket in which the parameter travels.

    Args:
        own: of each rank, its gradients by name, of any shapes.
        averaged: the same afterwards.
        buckets: strategy → names of the parameters in each bucket, in the order in which buckets
            leave. Rows stand in the order of the last strategy.
    """
    rows = [name for bucket in list(buckets.values())[-1] for name in bucket]
    size, widths = (7.2, 0.24 * len(rows) + 1.1), [len(own), len(own), 0.75 * len(buckets)]
    figure, grid = style.subplots(1, 3, size=size, width_ratios=widths)
    scale = np.array([max(abs(_strip(each[name])).max() for each in own) for name in rows])
    for axes, title, ranks in zip(grid[0], ("before", "after"), (own, averaged), strict=False):
        _strips(axes, [np.array([_strip(each[name]) for name in rows]) for each in ranks], scale)
        axes.set_title(title, fontsize=9)
    _bucket_numbers(grid[0, 2], rows, buckets)
    style.name_rows(grid[0, 0], rows)
    return figure


def _strip(gradient: torch.Tensor) -> np.ndarray:
    """The means of BINS parts; of fewer elements, each is shown several times."""
    flat = gradient.detach().flatten().double().cpu()
    if len(flat) < BINS:
        return flat[torch.arange(BINS) * len(flat) // BINS].numpy() if len(flat) else np.zeros(BINS)
    return np.array([part.mean().item() for part in flat.tensor_split(BINS)])


def _strips(axes: Axes, of_ranks: Sequence[np.ndarray], scale: np.ndarray) -> None:
    wide = BINS + 1  # a gap between ranks
    for rank, strips in enumerate(of_ranks):
        left = np.arange(BINS + 1) + rank * wide
        axes.pcolormesh(
            left,
            np.arange(len(scale) + 1),
            strips / np.maximum(scale, 1e-30)[:, None],
            cmap="PuOr_r",
            vmin=-1,
            vmax=1,
            rasterized=True,  # or seams show between the cells
        )
        for row in range(len(scale)):
            style.outline(axes, left[0], row, width=BINS)
    names = [f"rank {rank}" for rank in range(len(of_ranks))]
    axes.set_xticks(np.arange(len(names)) * wide + BINS / 2, names)
    _bare(axes, len(scale))


def _bucket_numbers(
    axes: Axes, rows: Sequence[str], buckets: Mapping[str, Sequence[Sequence[str]]]
) -> None:
    for column, filled in enumerate(buckets.values()):
        number = {name: index for index, bucket in enumerate(filled) for name in bucket}
        for row, name in enumerate(rows):
            style.fill(axes, column, row, COLORS[number[name] % 6], width=0.94)
            style.write(axes, column + 0.5, row + 0.53, str(number[name]))
    axes.set_xticks(np.arange(len(buckets)) + 0.5, list(buckets))
    axes.set_xlim(-0.05, len(buckets) + 0.05)
    axes.set_title("bucket", fontsize=9)
    _bare(axes, len(rows))


def _bare(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows + 0.05, -0.05)
    axes.set_yticks([])
    style.table(axes)


def holdings(rows: Mapping[str, Mapping[str, Held]]) -> Figure:
    """What every rank holds: a row of panels for each strategy, a panel for each moment.

    In a panel a line is a rank, and a strip is a part of the state, such as the weights, cut into
    its shards. A shard that is held is filled with its number's colour; one that is not is blank.

    Args:
        rows: strategy → moment → part → of each rank → of each shard: whether it is held. All
            strategies have the same moments, and all moments the same parts, ranks and shards.
    """
    moments = next(iter(rows.values()))
    ranks = len(next(iter(moments[next(iter(moments))].values())))
    size = 7.2, len(rows) * (0.17 * ranks + 0.22) + 0.4
    figure, grid = style.subplots(len(rows), len(moments), size=size, gridspec_kw={"wspace": 0.12})
    for line, (strategy, panels) in zip(grid, rows.items(), strict=True):
        for axes, held in zip(line, panels.values(), strict=True):
            _panel(axes, held)
        line[0].set_ylabel(strategy, fontsize=9)
    for axes, moment in zip(grid[0], moments, strict=True):
        axes.set_title(moment, fontsize=9)
        axes.tick_params(labeltop=True)
    for axes in grid[:, 0]:
        axes.tick_params(labelleft=True)
    return figure


def _panel(axes: Axes, held: Held) -> None:
    left, middles, ranks = 0.0, [], 0
    for lines in held.values():
        ranks, shards = len(lines), len(lines[0])
        for rank, number in np.ndindex(ranks, shards):
            color = (COLORS[number % 6], 0.55) if lines[rank][number] else None
            style.outline(axes, left + number, rank, height=0.86, linewidth=0.4, facecolor=color)
            if color:
                style.write(axes, left + number + 0.5, rank + 0.46, str(number), fontsize=5.5)
        middles.append(left + shards / 2)
        left += shards + GAP
    axes.set_xlim(-0.1, left - GAP + 0.1)
    axes.set_xticks(middles, list(held))
    style.name_rows(axes, map(str, range(ranks)))
    style.table(axes, labelsize=6)
    axes.tick_params(labelbottom=False, labelleft=False, pad=1)
