"""Ranks on a circle, clockwise from the top, and the messages that a replayed schedule sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi, sin

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, RANK
from minidist.schedule.simulate import Event, Replay

CELL = 0.36  # width of a chunk; an inch has two units
REACH = 1.95  # of a panel, from its middle to an edge
Point = tuple[float, float]


def place(rank: int, ranks: int) -> Point:
    """Where a rank stands: rank 0 on top, the others clockwise."""
    angle = 2 * pi * rank / ranks
    return 1.15 * sin(angle), 1.3 * cos(angle)


def ring_circle(replay: Replay, panels: Mapping[str, Sequence[int]], *, columns: int = 2) -> Figure:
    """Who sends what to whom, and what every rank then holds.

    A rank is a row of its chunks. A chunk has a stripe for each rank, filled if that rank's part is
    in it; Σ is a finished sum, and what the panel's steps have changed has a thick border. A dashed
    arrow overwrites what it meets, a solid one adds to it.

    Args:
        replay: of any schedule of up to eight ranks.
        panels: title → the steps, from 0, whose messages the panel shows.
        columns: panels side by side.
    """
    rows = -(-len(panels) // columns)
    figure, grid = style.subplots(rows, columns, size=(1.62 * columns, 1.9 * rows))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, steps) in zip(grid.flat, panels.items(), strict=False):
        panel(axes, replay, steps, title)
    return figure


def panel(axes: Axes, replay: Replay, steps: Sequence[int], title: str) -> None:
    """One of the circles of `ring_circle`."""
    events = [event for event in replay.events if event.step in steps]
    for event in events:
        _message(axes, event, replay)
    held, changed = replay.state(max(steps) + 1), {(e.dst, e.chunk) for e in events}
    for rank in range(replay.ranks):
        _holdings(axes, rank, replay, held[rank], {c for r, c in changed if r == rank})
    _bare(axes, title)


def _message(axes: Axes, event: Event, replay: Replay) -> None:
    x, y = _arrow(axes, event, replay.ranks, bend=-0.2, width=2)
    if replay.chunks > 1:
        style.write(axes, 2.3 * x, 1.4 * y, f"chunk {event.chunk}")


def _holdings(
    axes: Axes, rank: int, replay: Replay, held: Sequence[tuple[int, ...]], changed: set[int]
) -> None:
    middle, y = place(rank, replay.ranks)
    left, low = middle - CELL * replay.chunks / 2, y - 0.2
    for chunk, who in enumerate(held):
        x = left + CELL * chunk
        for part in who:
            stripe = CELL / replay.ranks
            style.fill(axes, x + part * stripe, low, RANK[part % 8], width=stripe, height=0.36)
        edge, width = (COLORS[1], 1.8) if chunk in changed else (GREY, 0.6)
        style.outline(axes, x, low, edge, width=CELL, height=0.36, linewidth=width)
        if who == tuple(range(replay.ranks)):
            style.write(axes, x + CELL / 2, low + 0.16, "Σ")
    aside = 0.9 * (middle > 0.5) - 0.9 * (middle < -0.5)  # clear of the arrows
    above = 0.53 if y > -0.5 else -0.2
    style.write(axes, middle + aside * CELL * (replay.chunks > 1), low + above, f"rank {rank}")


def chunk_tour(replay: Replay, chunk: int) -> Figure:
    """The way of one chunk round the ring: outside where it is added to, inside where it is copied.

    Beside each arrow stands its step, and which ranks' parts the message carries.
    """
    figure, grid = style.subplots(size=(3.5, 3.4))
    axes: Axes = grid[0, 0]
    for rank in range(replay.ranks):
        spot = place(rank, replay.ranks)
        axes.add_patch(Circle(spot, 0.3, facecolor=(RANK[rank % 8], 0.35), edgecolor=GREY))
        style.write(axes, *spot, f"rank {rank}")
    for event in (event for event in replay.events if event.chunk == chunk):
        bend, width, out = (-0.32, 2.2, 1.62) if event.reduce else (0.1, 1.4, 0.52)
        x, y = _arrow(axes, event, replay.ranks, bend=bend, width=width)
        whole = event.carried == tuple(range(replay.ranks))
        carried = "Σ" if whole else "+".join(map(str, event.carried))
        style.write(axes, out * x, out * y, f"step {event.step + 1}\n{carried}")
    _bare(axes, "")
    return figure


def _arrow(axes: Axes, event: Event, ranks: int, *, bend: float, width: float) -> Point:
    """An arrow in the sender's colour, dashed if the message overwrites; returns its middle."""
    start, end = place(event.src, ranks), place(event.dst, ranks)
    arrow = FancyArrowPatch(
        start,
        end,
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=11,
        shrinkA=17,
        shrinkB=17,
        color=RANK[event.src % 8],
        linewidth=width,
        linestyle="-" if event.reduce else (0, (3, 2)),
    )
    axes.add_patch(arrow)
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2


def _bare(axes: Axes, title: str) -> None:
    axes.set(xlim=(-REACH, REACH), ylim=(-1.8, 1.9), aspect="equal")
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()
