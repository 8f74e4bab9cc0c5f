"""Who holds what under ZeRO: parts of the state on every rank, and how flat parameters are cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.memory.state import DtypePolicy, StateBytes, share, state
from minidist.parallel.sharding.layouts import Flat
from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH, RANK

PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer state": "optimizer"}
BAR = 0.78  # of a rank's column


def who_holds(policy: DtypePolicy, ranks: int, stages: Mapping[str, int]) -> Figure:
    """State with Adam, to scale: a panel for each strategy, a column for each rank.

    What a rank holds is filled: all of a part, or the slice with the rank's number, which lies as
    high as its number is. What it does not hold is an empty outline.

    Args:
        policy: which dtypes the parts have.
        ranks: columns of a panel.
        stages: title → stage, as `share` takes it; 0 is data parallelism.
    """
    whole, rows = state(ranks, policy), -(-len(stages) // 2)  # a parameter for each rank
    figure, grid = style.subplots(rows, 2, size=(3.4, 1.9 * rows), sharey=True)
    for axes, (title, stage) in zip(grid.flat, stages.items(), strict=False):
        for rank in range(ranks):
            _column(axes, rank, whole, share(whole, ranks, stage), ranks)
        each = share(whole, ranks, stage).total / ranks
        axes.set_title(f"{title}: {each:g} bytes", fontsize=9)
        axes.set_xlim(-0.5, ranks - 0.5)
        axes.set_ylim(0, whole.total)
        axes.set_xticks(range(ranks), map(str, range(ranks)))
        axes.set_xlabel("rank", fontsize=8)
        style.table(axes)
    heights, bottom = [], 0.0
    for part in PARTS.values():
        heights.append(bottom + getattr(whole, part) / 2)
        bottom += getattr(whole, part)
    names = [name.replace(" ", "\n") for name in PARTS]
    grid[0, 0].set_yticks(heights, names)
    return figure


def part_look(name: str) -> dict[str, Any]:
    """Colour and hatch of a part of the state, with a thin border."""
    hatch, color = PART_HATCH[name], PART[name]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def _column(axes: Axes, rank: int, whole: StateBytes, own: StateBytes, ranks: int) -> None:
    """One rank: the parts on top of each other."""
    bottom, left = 0.0, rank - BAR / 2
    for name, part in PARTS.items():
        full, held = getattr(whole, part), getattr(own, part)
        start = bottom + (full * rank / ranks if held < full else 0)
        axes.bar(left, held, BAR, start, align="edge", alpha=0.85, **part_look(name))
        style.outline(axes, left, bottom, GREY, width=BAR, height=full, linewidth=0.6)
        bottom += full


def flat_layout(sizes: Mapping[str, int], ranks: int) -> Figure:
    """Parameters end to end in one buffer above, the ranks' equal shards of it below.

    Args:
        sizes: name → elements of each parameter.
        ranks: each owns a shard; what no parameter fills is padding.
    """
    figure, grid = style.subplots(size=(3.4, 1.1))
    axes: Axes = grid[0, 0]
    names = [f"{name}[{i}]" for name, size in sizes.items() for i in range(size)]
    shard = Flat([torch.Size([size]) for size in sizes.values()], ranks, 0).shard_numel
    cells = ranks * shard
    for x, name in enumerate([*names, *["pad"] * (cells - len(names))]):
        style.outline(axes, x, 0, GREY, linewidth=0.8)
        style.write(axes, x + 0.5, 0.5, name)
    for rank in range(ranks):
        box: dict[str, Any] = {"width": shard - 0.08, "height": 1, "linewidth": 1.2}
        style.outline(axes, rank * shard + 0.04, 1.45, RANK[rank], facecolor=None, **box)
        style.fill(axes, rank * shard + 0.04, 1.45, RANK[rank], width=shard - 0.08, alpha=0.35)
        style.write(axes, (rank + 0.5) * shard, 1.95, f"rank {rank}")
    axes.set_xlim(-0.05, cells + 0.05)
    axes.set_ylim(2.55, -0.1)
    axes.set_xticks([])
    axes.set_yticks([0.5, 1.95], ["buffer", "shards"])
    style.table(axes)
    return figure
