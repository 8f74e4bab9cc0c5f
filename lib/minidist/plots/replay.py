"""Pictures of a schedule that was replayed: what every rank holds, chunk by chunk."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY
from minidist.schedule.simulate import Replay


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
