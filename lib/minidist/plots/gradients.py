"""A picture of what data parallelism does to gradients: before and after, and in which buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.draw import COLORS

BINS = 16  # pieces that a gradient is cut into; each shows the mean of its elements


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

    Raises:
        ValueError: a strategy's buckets do not hold each parameter once.
    """
    rows = [name for bucket in list(buckets.values())[-1] for name in bucket]
    for strategy, filled in buckets.items():
        held = sorted(name for bucket in filled for name in bucket)
        if not held == sorted(rows) == sorted(own[0]):
            raise ValueError(
                f"buckets: {strategy}: expected each of {sorted(own[0])} once, got {held}"
            )
    figure, panels = plt.subplots(
        1,
        3,
        figsize=(7.2, 0.24 * len(rows) + 1.1),
        width_ratios=[len(own), len(own), 0.75 * len(buckets)],
        facecolor="none",
        layout="constrained",
    )
    scale = [max(_strip(each[name]).max() for each in map(_absolute, own)) for name in rows]
    for axes, title, held_by in zip(panels, ("before", "after"), (own, averaged), strict=False):
        _strips(axes, rows, held_by, scale)
        axes.set_title(title, fontsize=9)
    _places(panels[2], rows, buckets)
    panels[0].set_yticks(np.arange(len(rows)) + 0.5, rows)
    return figure


def _absolute(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(_strip(gradient)).abs() for name, gradient in held.items()}


def _strip(gradient: torch.Tensor) -> np.ndarray:
    """The means of BINS pieces; of fewer elements, each is shown several times."""
    flat = gradient.detach().flatten().double().cpu()
    if len(flat) < BINS:
        return flat[torch.arange(BINS) * len(flat) // BINS].numpy() if len(flat) else np.zeros(BINS)
    return np.array([piece.mean().item() for piece in flat.tensor_split(BINS)])


def _strips(
    axes: Axes,
    rows: Sequence[str],
    held: Sequence[Mapping[str, torch.Tensor]],
    scale: Sequence[float],
) -> None:
    wide = BINS + 1  # a gap between ranks
    for rank, gradients in enumerate(held):
        strips = np.array([_strip(gradients[name]) for name in rows])
        strips /= np.maximum(np.array(scale), 1e-30)[:, None]
        left = np.arange(BINS + 1) + rank * wide
        axes.pcolormesh(
            left,
            np.arange(len(rows) + 1),
            strips,
            cmap="PuOr_r",
            vmin=-1,
            vmax=1,
            rasterized=True,  # or seams show between the cells
        )
        for row in range(len(rows)):
            box = Rectangle((left[0], row), BINS, 1, fill=False, edgecolor=COLORS[6], linewidth=0.5)
            axes.add_patch(box)
    axes.set_xticks(np.arange(len(held)) * wide + BINS / 2, [f"rank {r}" for r in range(len(held))])
    _plain(axes, len(rows))


def _places(
    axes: Axes, rows: Sequence[str], buckets: Mapping[str, Sequence[Sequence[str]]]
) -> None:
    for column, filled in enumerate(buckets.values()):
        number = {name: index for index, bucket in enumerate(filled) for name in bucket}
        for row, name in enumerate(rows):
            color = COLORS[number[name] % 6]
            box = Rectangle((column, row), 0.94, 1, facecolor=color, alpha=0.4, linewidth=0)
            axes.add_patch(box)
            text = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(column + 0.5, row + 0.53, str(number[name]), **text)  # type: ignore[arg-type]
    axes.set_xticks(np.arange(len(buckets)) + 0.5, list(buckets))
    axes.set_xlim(-0.05, len(buckets) + 0.05)
    axes.set_title("bucket", fontsize=9)
    _plain(axes, len(rows))


def _plain(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows + 0.05, -0.05)
    axes.set_yticks([])
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
