"""Which units dropout switches off, for each sample of each rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK


def masks(panels: Mapping[str, torch.Tensor]) -> Figure:
    """A panel for each way to seed; ranks side by side, samples in rows, units in columns.

    Args:
        panels: title → booleans [ranks, samples, units], true where a unit is dropped.
    """
    ranks = max(len(dropped) for dropped in panels.values())
    figure, grid = style.subplots(len(panels), ranks, size=(3.7, 0.85 * len(panels) + 0.1))
    for row, (title, dropped) in zip(grid, panels.items(), strict=True):
        for rank, (axes, own) in enumerate(zip(row, dropped, strict=True)):
            _block(axes, own, RANK[rank % len(RANK)])
            axes.set_xlabel(f"rank {rank}", fontsize=9)
        row[0].set_title(title, fontsize=9, loc="left")
    return figure


def _block(axes: Axes, dropped: torch.Tensor, color: str) -> None:
    for sample, units in enumerate(dropped.tolist()):
        for unit, off in enumerate(units):
            if off:
                style.fill(axes, unit, sample, color, alpha=0.9)
    samples, units = dropped.shape
    style.outline(axes, 0, 0, GREY, width=units, height=samples, linewidth=0.8)
    axes.set(xlim=(-0.1, units + 0.1), ylim=(samples + 0.1, -0.1), xticks=[], yticks=[])
    axes.set_aspect("equal")
    style.table(axes)
