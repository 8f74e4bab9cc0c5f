"""What one message takes on a link, and how an algorithm fills the two directions of a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, RANK
from minidist.schedule.cost import Link
from minidist.schedule.simulate import Replay

BAR = 0.62


def message_times(link: Link, sizes: Mapping[str, float]) -> Figure:
    """A bar for a message of each size: first the latency, then its bytes.

    Behind it stands the time, and the rate that the message as a whole has had.
    """
    figure, grid = style.subplots(size=(3.3, 0.36 * len(sizes) + 0.95))
    axes: Axes = grid[0, 0]
    alpha = 1e6 * link.alpha
    for row, nbytes in enumerate(sizes.values()):
        wire = 1e6 * link.beta * nbytes
        axes.barh(row, alpha, BAR, facecolor="none", hatch="////", edgecolor=GREY)
        axes.barh(row, wire, BAR, left=alpha, color=COLORS[0], alpha=0.75)
        rate = nbytes / (alpha + wire) / 1e3  # bytes in microseconds
        said = f" {alpha + wire:.0f} µs, {rate:.2g} GB/s"
        axes.text(alpha + wire, row, said, va="center", fontsize=8)
    axes.text(alpha / 2, -0.55, "α", ha="center", fontsize=9)
    axes.text(1.2 * alpha, -0.55, "β · bytes", fontsize=9)
    axes.set_yticks(range(len(sizes)), list(sizes))
    longest = alpha + 1e6 * link.beta * max(sizes.values())
    axes.set(xlim=(0, 1.62 * longest), ylim=(len(sizes) - 0.5, -0.95))
    axes.set_xticks(range(0, int(longest) + 1, 10))
    axes.set_xlabel("microseconds", fontsize=9)
    style.chart(axes, labelsize=8)
    return figure


def link_lanes(replays: Mapping[str, Replay], rank: int = 0) -> Figure:
    """What comes in and what goes out at one rank's link, over time, for each schedule.

    Time counts bytes only, in units of the time that one whole tensor takes. A bar has the colour
    of its sender, and its number where there is room.
    """
    figure, grid = style.subplots(
        len(replays), 1, size=(3.7, 1.2 * len(replays) + 0.5), sharex=True
    )
    ends = [
        fill_lanes(axes, replay, rank, title)
        for axes, (title, replay) in zip(grid.flat, replays.items(), strict=True)
    ]
    grid[-1, 0].set_xlim(0, 1.02 * max(ends))
    grid[-1, 0].set_xlabel("time, in units of one whole tensor (βG)", fontsize=9)
    return figure


def fill_lanes(axes: Axes, replay: Replay, rank: int, title: str) -> float:
    """Draw one rank's link; returns when its last message ends."""
    end = 0.0
    for row, own in enumerate(lanes(replay, rank)):
        for start, length, src in own:
            style.fill(axes, start, row, RANK[src % 8], width=length, height=0.8, alpha=0.55)
            style.outline(axes, start, row, width=length, height=0.8, linewidth=0.4)
            if length > 0.5:
                style.write(axes, start + length / 2, row + 0.42, str(src))
            end = max(end, start + length)
    axes.set(ylim=(2, -0.1), yticks=[0.4, 1.4], yticklabels=["in", "out"])
    axes.set_title(title, fontsize=9, loc="left")
    style.chart(axes, labelsize=8)
    axes.tick_params(axis="y", length=0)
    return end


def lanes(replay: Replay, rank: int) -> tuple[Sequence[tuple[float, float, int]], ...]:
    """(start, length, sender) of each message that comes in at `rank`, and of each that leaves it.

    A step lasts as long as the largest message in it.
    """
    coming: list[tuple[float, float, int]] = []
    leaving: list[tuple[float, float, int]] = []
    now = 0.0
    for step in range(replay.steps):
        events = [event for event in replay.events if event.step == step]
        sizes = dict.fromkeys(((e.src, e.dst) for e in events), 0.0)
        for event in events:
            sizes[event.src, event.dst] += 1 / replay.chunks
        for (src, dst), size in sizes.items():
            if rank in (src, dst):
                (leaving if rank == src else coming).append((now, size, src))
        now += max(sizes.values())
    return coming, leaving
