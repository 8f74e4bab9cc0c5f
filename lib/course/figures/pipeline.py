"""A pipeline at work: which link carries which segment in which step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY
from minidist.schedule.schedule import Schedule


def pipeline(schedule: Schedule) -> Figure:
    """A row for each link, a column for each step; a cell has the number of the segment.

    Sums on their way up to rank 0 are blue, finished ones on their way back are green and hatched.
    """
    sends = [(number, send) for number, step in enumerate(schedule) for send in step]
    links = list(dict.fromkeys((send.src, send.dst) for _, send in sends))
    steps = 1 + max(number for number, _ in sends)
    figure, grid = style.subplots(size=(0.28 * steps + 1.2, 0.3 * len(links) + 0.75))
    axes: Axes = grid[0, 0]
    for number, send in sends:
        row = links.index((send.src, send.dst))
        color, hatch = (COLORS[0], "") if send.reduce else (COLORS[2], "////")
        cell = axes.barh(row + 0.5, 1, 0.86, number, color=color, alpha=0.4)
        cell[0].set(hatch=hatch, edgecolor=GREY, linewidth=0.5)
        style.write(axes, number + 0.5, row + 0.5, str(send.chunk), fontsize=9)
    style.name_rows(axes, (f"rank {src} → {dst}" for src, dst in links))
    axes.set_xticks([step + 0.5 for step in range(steps)], map(str, range(1, steps + 1)))
    axes.set_xlim(-0.05, steps + 0.05)
    axes.set_xlabel("step", fontsize=9)
    style.table(axes)
    return figure
