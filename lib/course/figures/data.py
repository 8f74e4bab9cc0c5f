"""Pictures of data: which rank draws which sample, which node has which part, a shuffle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, RANK

GAP = 0.5  # between steps
Pairs = Sequence[tuple[Any, Any]]


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


def shuffle(mapped: Sequence[Sequence[Pairs]], parts: Sequence[Mapping[Any, Any]]) -> Figure:
    """A shuffle as a table: a map task writes a row, a reducer reads a column.

    Args:
        mapped: mapped[m][r] are the pairs that map task m has for reducer r.
        parts: parts[r] is what reducer r makes of them.
    """
    maps, reducers = len(mapped), len(parts)
    size = 1.9 * reducers + 1.2, 0.62 * maps + 1.3
    figure, grid = style.subplots(size=size, layout="tight")
    axes: Axes = grid[0, 0]
    for m, row in enumerate(mapped):
        for r, pairs in enumerate(row):
            _box(axes, r, m, pairs, 0.16)
    for r, part in enumerate(parts):
        _box(axes, r, maps + 0.45, list(part.items()), 0.42)
        arrow = {"arrowstyle": "->", "color": GREY}
        axes.annotate("", (r + 0.48, maps + 0.43), (r + 0.48, maps - 0.02), arrowprops=arrow)
    axes.set_xlim(-0.02, reducers)
    axes.set_ylim(maps + 1.45, -0.05)
    axes.set_xticks(np.arange(reducers) + 0.48, [f"reducer {r}" for r in range(reducers)])
    rows = [*(np.arange(maps) + 0.45), maps + 0.9]
    axes.set_yticks(rows, [*(f"map task {m}" for m in range(maps)), "result"])
    axes.xaxis.tick_top()
    style.table(axes)
    return figure


def _box(axes: Axes, reducer: int, y: float, pairs: Pairs, alpha: float) -> None:
    if pairs:
        style.fill(axes, reducer, y, COLORS[reducer % 7], width=0.96, height=0.9, alpha=alpha)
    style.outline(axes, reducer, y, width=0.96, height=0.9)
    texts = [f"{key} {value}" for key, value in pairs]
    middle = -(-len(texts) // 2) if len(texts) > 2 else len(texts)
    lines = [",  ".join(line) for line in (texts[:middle], texts[middle:]) if line]
    style.write(axes, reducer + 0.48, y + 0.45, "\n".join(lines), fontsize=7.5)
