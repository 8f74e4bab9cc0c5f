"""Pictures of data: which rank draws which sample, and which node has which part."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, RANK

GAP = 0.5  # between steps


def epoch(drawn: Sequence[Sequence[int]], batch: int) -> Figure:
    """Ranks are rows; what they draw stands in order, cut into steps of `batch` samples.

    The cells of one step, over all ranks, are the global batch: they have one colour. A sample that
    was drawn before, by an earlier step or a smaller rank, is crossed out: it is a repetition.

    Args:
        drawn: of each rank, the numbers of its samples, in order.
        batch: samples that a rank takes in a step.
    """
    longest = max(len(own) for own in drawn)
    figure, grid = style.subplots(size=(0.36 * longest + 1.1, 0.28 * len(drawn) + 0.5))
    axes: Axes = grid[0, 0]
    seen: set[int] = set()
    for place in range(longest):
        step = place // batch
        x = place + GAP * step
        for rank, own in enumerate(drawn):
            if place < len(own):
                style.fill(axes, x, rank, COLORS[step % 6], width=0.94, height=0.92)
                style.write(axes, x + 0.47, rank + 0.48, str(own[place]))
                if own[place] in seen:
                    axes.plot([x, x + 0.94], [rank + 0.92, rank], color=COLORS[1], linewidth=1.6)
                seen.add(own[place])
    edges = [(at, min(at + batch, longest)) for at in range(0, longest, batch)]
    middles = [(left + right) / 2 + GAP * step for step, (left, right) in enumerate(edges)]
    axes.set_xticks(middles, [f"step {step + 1}" for step in range(len(edges))])
    axes.set_xlim(-0.1, longest + GAP * (len(edges) - 1) + 0.1)
    axes.xaxis.tick_top()
    style.name_rows(axes, (f"rank {rank}" for rank in range(len(drawn))), offset=0.46)
    style.table(axes)
    return figure


def batch_shares(parts: Sequence[Sequence[object]], local: int) -> Figure:
    """A batch cut into a part for each rank; ranks of one node stand in one row.

    Args:
        parts: of each rank, the names of its samples.
        local: ranks in a node.
    """
    nodes = -(-len(parts) // local)
    share = max(1, *(len(part) for part in parts))
    width = local * (share + GAP)
    figure, grid = style.subplots(size=(0.19 * width, 0.74 * nodes))
    axes: Axes = grid[0, 0]
    for rank, part in enumerate(parts):
        left, top = rank % local * (share + GAP), 3.4 * (rank // local)
        for x, sample in enumerate(part):
            color = RANK[rank % 8], 0.5
            style.outline(axes, left + x, top, "black", linewidth=0.8, facecolor=color)
            style.write(axes, left + x + 0.5, top + 0.52, str(sample))
        style.write(axes, left + share / 2, top + 1.5, f"rank {rank}")
        style.write(axes, left + share / 2, top + 2.15, f"local {rank % local}")
        if rank % local == 0:
            style.write(axes, -1.7, top + 0.52, f"node {rank // local}")
    axes.set(xlim=(-3, width - GAP + 0.1), ylim=(3.4 * nodes - 0.8, -0.1))
    axes.set_axis_off()
    return figure
