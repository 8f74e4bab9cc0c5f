"""What a collective does: what every rank brings and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, RANK
from minidist.schedule.simulate import Contributors, Replay, State


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
                color = RANK[contributor % 8]
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
