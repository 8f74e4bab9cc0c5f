"""Pictures of ZeRO: who holds which part of the state, and the flat layout."""

from collections.abc import Mapping
from itertools import accumulate, product

import torch
from matplotlib.figure import Figure

from minidist.memory.state import DtypePolicy, share, state
from minidist.parallel.sharding.layouts import Flat
from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.style import RANK

WIDE = 3.7  # inches, of every picture here
PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer state": "optimizer"}
BAR = 0.78  # share of a rank's column


def who_holds(policy: DtypePolicy, ranks: int, stages: Mapping[str, int]) -> Figure:
    """State with Adam, to scale: a panel for each strategy, a column for each rank.

    What a rank holds is filled: all of a part, or the slice with the rank's number; what it does
    not hold is an empty outline. `stages`: title → stage, as `share` takes it.
    """
    whole, rows = state(ranks, policy), -(-len(stages) // 2)  # a parameter for each rank
    sizes = [getattr(whole, part) for part in PARTS.values()]
    bottoms = [top - full for top, full in zip(accumulate(sizes), sizes, strict=True)]
    parts = [*zip(PARTS, sizes, bottoms, strict=True)]
    figure, grid = style.subplots(rows, 2, size=(WIDE, 1.9 * rows), sharey=True)
    for axes, (title, stage) in zip(grid.flat, stages.items(), strict=False):
        own = share(whole, ranks, stage)
        for rank, (name, full, bottom) in product(range(ranks), parts):
            held, left = getattr(own, PARTS[name]), rank - BAR / 2
            start = bottom + (full * rank / ranks if held < full else 0)
            axes.bar(left, held, BAR, start, align="edge", **style.part_look(name))
            style.box(axes, left, bottom, BAR, full, linewidth=0.6)
        axes.set_title(f"{title}: {own.total / ranks:g} bytes", fontsize=style.TITLE)
        style.table(axes)
        axes.set(xlim=(-0.5, ranks - 0.5), ylim=(0, whole.total), xticks=range(ranks))
        axes.set_xlabel("rank", fontsize=style.LABEL)
    middles = [bottom + full / 2 for _, full, bottom in parts]
    grid[0, 0].set_yticks(middles, [name.replace(" ", "\n") for name in PARTS])
    return figure


def flat_layout(sizes: Mapping[str, int], ranks: int) -> Figure:
    """Parameters of these sizes end to end in a padded buffer, and the ranks' shards of it."""
    names = [f"{name}[{i}]" for name, size in sizes.items() for i in range(size)]
    shard = Flat([torch.Size([size]) for size in sizes.values()], ranks, 0).shard_numel
    pads = ["pad"] * (ranks * shard - len(names))
    shards = [
        Cell(f"rank {rank}", (RANK[rank], 0.35), shard - 0.08, rank * shard + 0.04, edge=RANK[rank])
        for rank in range(ranks)
    ]
    figure, axes = style.single(size=(WIDE, 1.1))
    cells(axes, [map(Cell, names + pads), shards], ["buffer", "shards"], tall=0.76)
    return figure
