"""Pictures of a schedule that was replayed: what every rank holds, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY
from minidist.schedule.simulate import Contributors, Replay, State


def trace(replay: Replay) -> Figure:
    """What every rank holds, chunk by chunk, before the first step and after each one.

    A cell lists the ranks whose parts are summed in it, and fills up with their number; what the
    step has changed is outlined, a finished sum is green.
    """
    columns = min(3, replay.steps + 1)
    rows = -(-(replay.steps + 1) // columns)
    size = columns * max(replay.chunks * 0.66, 2.2), rows * (replay.ranks * 0.34 + 0.55)
    figure, grid = style.subplots(rows, columns, size=size, layout="tight")
    for after, axes in enumerate(grid.flat):
        if after > replay.steps:
            axes.set_axis_off()
        else:
            _panel(axes, replay, after)
    return figure


def _panel(axes: Axes, replay: Replay, after: int) -> None:
    axes.set_title("start" if after == 0 else f"after step {after} of {replay.steps}", fontsize=9)
    changed = {(event.dst, event.chunk) for event in replay.events if event.step == after - 1}
    for rank, chunks in enumerate(replay.state(after)):
        for chunk, who in enumerate(chunks):
            share = min(1.0, len(set(who)) / replay.ranks)
            color = COLORS[2] if who == replay.goal[rank][chunk] else COLORS[0]
            style.fill(axes, chunk, rank, color, width=share, alpha=0.35)
            edge, width = (COLORS[1], 1.6) if (rank, chunk) in changed else (GREY, 0.5)
            style.outline(axes, chunk, rank, edge, linewidth=width)
            style.write(axes, chunk + 0.5, rank + 0.54, "+".join(map(str, who)), fontsize=6.5)
    axes.set_xlim(-0.05, replay.chunks + 0.05)
    axes.set_xticks(np.arange(replay.chunks) + 0.5, [f"{c}" for c in range(replay.chunks)])
    style.name_rows(axes, (f"rank {rank}" for rank in range(replay.ranks)))
    style.table(axes, labelsize=7)


def before_after(replays: Mapping[str, Replay]) -> Figure:
    """What every rank brings and what it gets: two grids side by side for each name and replay.

    Rows of a grid are ranks, columns are chunks. A cell names the ranks whose parts are in it, in
    stripes of their colours; a sum over all ranks is Σ. Blank is what a rank does not bring, or
    what the collective does not promise. In an all-to-all each row shows the N blocks that the
    rank holds side by side, as `from→for`. What does not end as promised is outlined.
    """
    widths = [each.ranks if _blocks(each) else each.chunks for each in replays.values()]
    columns = max(4, *widths)  # or there is no room for the titles
    heights = [0.23 * each.ranks + 0.46 for each in replays.values()]
    size = 0.66 * columns + 0.66, sum(heights)
    figure, grid = style.subplots(len(replays), 2, size=size, height_ratios=heights)
    for (left, right), (name, each) in zip(grid, replays.items(), strict=True):
        brought = [[who or None for who in row] for row in each.start]
        _side(left, each, each.start, brought, columns)
        _side(right, each, each.state(), each.goal, columns)
        left.set_title(f"{name}: before", fontsize=8, loc="left")
        right.set_title("after", fontsize=8, loc="left")
        right.tick_params(labelleft=False)
    return figure


def _side(
    axes: Axes,
    replay: Replay,
    held: State,
    wanted_of: Sequence[Sequence[Contributors | None]],
    columns: int,
) -> None:
    """One grid: of what is `held`, the cells where something is wanted."""
    blocks = _blocks(replay)
    width = replay.ranks if blocks else replay.chunks
    for rank, wanted in enumerate(wanted_of):
        own = [chunk for chunk, who in enumerate(wanted) if who is not None]
        for x, chunk in enumerate(own) if blocks else zip(own, own, strict=True):
            who = held[rank][chunk]
            for i, contributor in enumerate(who):
                color = COLORS[contributor % 6]  # the seventh is the grey of the lines
                style.fill(axes, x + i / len(who), rank, color, width=1 / len(who))
            if who != wanted[chunk]:
                style.outline(axes, x, rank, COLORS[1], linewidth=2)
            text = f"{chunk // width}→{chunk % width}" if blocks else _sum(who, replay.ranks)
            style.write(axes, x + 0.5, rank + 0.53, text)
    for x, rank in np.ndindex(width, replay.ranks):
        style.outline(axes, x, rank)
    axes.set_xlim(-0.05, columns + 0.05)
    axes.set_xticks([])
    style.name_rows(axes, (f"rank {rank}" for rank in range(replay.ranks)))
    style.table(axes)


def _blocks(replay: Replay) -> bool:
    """True if each rank brings N of N x N chunks, one for each rank: too wide for a grid."""
    brings = {sum(map(bool, row)) for row in replay.start}
    return replay.chunks == replay.ranks**2 > 1 and brings == {replay.ranks}


def _sum(who: Contributors, ranks: int) -> str:
    return "Σ" if ranks > 1 and who == tuple(range(ranks)) else "+".join(map(str, who))
