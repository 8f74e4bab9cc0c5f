"""Pictures of what each rank has: its gradients before and after averaging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS

BINS = 8  # parts of a gradient that are shown, each by the mean of its elements


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
    size, widths = (3.4, 0.24 * len(rows) + 1.2), [len(own), len(own), 0.6 * len(buckets)]
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
    axes.set_xticks(np.arange(len(of_ranks)) * wide + BINS / 2, map(str, range(len(of_ranks))))
    axes.set_xlabel("rank", fontsize=8)
    _bare(axes, len(scale))


def _bucket_numbers(
    axes: Axes, rows: Sequence[str], buckets: Mapping[str, Sequence[Sequence[str]]]
) -> None:
    for column, filled in enumerate(buckets.values()):
        number = {name: index for index, bucket in enumerate(filled) for name in bucket}
        for row, name in enumerate(rows):
            style.fill(axes, column, row, COLORS[number[name] % 6], width=0.94)
            style.write(axes, column + 0.5, row + 0.53, str(number[name]))
    axes.set_xticks(np.arange(len(buckets)) + 0.5, list(buckets), rotation=90)
    axes.set_xlim(-0.05, len(buckets) + 0.05)
    axes.set_title("bucket", fontsize=9)
    _bare(axes, len(rows))


def _bare(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows + 0.05, -0.05)
    axes.set_yticks([])
    style.table(axes)
