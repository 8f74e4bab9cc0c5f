"""Pictures of data: which rank draws which sample, and which node has which part."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS

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
    """A batch cut into a part for each rank, and the ranks into nodes of `local`.

    Args:
        parts: of each rank, the names of its samples.
        local: ranks in a node.
    """
    figure, grid = style.subplots(size=(7.2, 1.8))
    axes: Axes = grid[0, 0]
    edge = begin = 0.0
    for rank, part in enumerate(parts):
        if rank % local == 0:
            edge = begin = edge + 0.7 * (rank > 0)  # nodes stand further apart than ranks
        for x, sample in enumerate(part):
            color = COLORS[rank % local % 7], 0.55
            style.outline(axes, edge + x, 0, "black", linewidth=1, facecolor=color)
            style.write(axes, edge + x + 0.5, 0.5, str(sample), fontsize=7)
        name = f"rank {rank}\nlocal {rank % local}"
        axes.text(edge + len(part) / 2, -0.3, name, ha="center", va="top", fontsize=8)
        edge += len(part)
        if rank % local == local - 1 or rank == len(parts) - 1:
            node = f"node {rank // local}"
            axes.text((begin + edge) / 2, 1.3, node, ha="center", fontsize=9)
        edge += 0.7
    axes.set_xlim(-0.3, edge - 0.4)
    axes.set_ylim(-1.5, 2.0)
    axes.set_axis_off()
    return figure
