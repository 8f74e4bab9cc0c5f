"""Pictures of the ring: who sends to whom, what lies where, and when each link is busy."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke

from course.drawing.sketches import Look, Point, arrow, clockwise, note, shares
from minidist.plots import cells as plots
from minidist.plots import style
from minidist.plots.cells import Cell
from minidist.plots.style import COLORS, GREY, RANK, box
from minidist.schedule.replay import Event, Replay

TIME = "time, in units of one full tensor (βG)"
REACH = 1.78, 1.92  # a panel's middle to its edges; an inch has two units
place = partial(clockwise, wide=1.15, high=1.3)


def ring_circle(replay: Replay, panels: Mapping[str, Sequence[int]]) -> Figure:
    """The messages of some steps, and what every rank then holds.

    A rank is a row of its chunks. A chunk has a stripe for each rank, coloured if that rank's part
    is in it; Σ is a finished sum, and what the panel's steps have changed has a thick border. A
    dashed arrow overwrites what it meets, a solid one adds to it. `replay`: of four ranks, of up to
    eight if the tensor is one chunk; `panels`: title → the steps, from 0, that it shows.
    """
    columns = 3 if len(panels) == 3 else 2
    rows = -(-len(panels) // columns)
    figure, grid = style.subplots(rows, columns, size=(1.72 * columns, 2.05 * rows))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, steps) in zip(grid.flat, panels.items(), strict=False):
        panel(axes, replay, steps, title)
    return figure


def panel(axes: Axes, replay: Replay, steps: Sequence[int], title: str) -> None:
    """One of the circles of `ring_circle`."""
    events = [event for event in replay.events if event.step in steps]
    for event in events:
        if replay.chunks > 1:
            _to_the_next(axes, event)
        else:
            _arrow(axes, event, replay.ranks, bend=-0.2, width=2)
    held, changed = replay.state(max(steps) + 1), {(e.dst, e.chunk) for e in events}
    for rank in range(replay.ranks):
        _holdings(axes, rank, replay, held[rank], {c for r, c in changed if r == rank})
    _bare(axes, title)


def _to_the_next(axes: Axes, event: Event) -> None:
    """An arrow of a ring of four, outside of the rows, and its chunk at the corner beyond it."""
    right, up = 1 if event.src < 2 else -1, 1 if event.src in (0, 3) else -1
    ends = [(0.8 * right, 1.08 * up), (1.22 * right, 0.36 * up)]
    start, end = ends if event.src % 2 == 0 else ends[::-1]
    _message(axes, event, start, end, 2, bend=-0.4, gap=0)
    side, name = "left" if right > 0 else "right", f"chunk {event.chunk}"
    note(axes, 0.92 * right, 1.38 * up, name, side, fontsize=style.LABEL)


def _holdings(
    axes: Axes, rank: int, replay: Replay, held: Sequence[tuple[int, ...]], changed: set[int]
) -> None:
    middle, y = place(rank, replay.ranks)
    if replay.chunks > 1:
        middle, y = ((0.0, 1.24), (1.0, 0.0), (0.0, -1.24), (-1.0, 0.0))[rank % 4]
        wide, high = 0.36, 0.5
        aside, above = (-0.36 * middle, 0.46) if middle else (0.0, 0.46 if y > 0 else -0.48)
    else:
        wide, high = 0.56, 0.52
        aside, above = 0.0, 0.48 if y > 0.5 else -0.5
    left = middle - wide * replay.chunks / 2
    for chunk, who in enumerate(held):
        x = left + wide * chunk
        stripe = 0.9 * wide / replay.ranks
        for part in range(replay.ranks):
            color, alpha = (RANK[part % 8], 0.9) if part in who else (GREY, 0.14)
            at = x + 0.05 * wide + part * stripe
            box(axes, at, y - high / 2, 0.86 * stripe, high, face=(color, alpha), linewidth=0)
        edge, width = (COLORS[1], 2.2) if chunk in changed else (GREY, 0.6)
        box(axes, x, y - high / 2, wide, high, edge=edge, linewidth=width)
        if who == tuple(range(replay.ranks)):
            sign = axes.text(x + wide / 2, y, "Σ", ha="center", va="center", fontsize=style.TITLE)
            sign.set(weight="bold", path_effects=[withStroke(linewidth=1.6, foreground="white")])
    style.write(axes, middle + aside, y + above, f"rank {rank}")


def chunk_tour(replay: Replay, chunk: int) -> Figure:
    """The way of one chunk round the ring: outside where it is added to, inside where it is copied.

    Beside each arrow stands its step, and which ranks' parts the message carries.
    """
    figure, axes = style.single(size=(3.4, 3.3))
    for rank in range(replay.ranks):
        spot, color = place(rank, replay.ranks), RANK[rank % 8]
        axes.add_patch(Circle(spot, 0.3, facecolor=(color, 0.35), edgecolor=GREY))
        style.write(axes, *spot, f"rank {rank}")
    for event in (event for event in replay.events if event.chunk == chunk):
        bend, width, out = (-0.32, 2.2, 1.95) if event.reduce else (0.1, 1.4, 0.45)
        x, y = _arrow(axes, event, replay.ranks, bend=bend, width=width)
        whole = event.carried == tuple(range(replay.ranks))
        carried = "Σ" if whole else "+".join(map(str, event.carried))
        style.write(axes, out * x, out * y, f"step {event.step + 1}\n{carried}")
    _bare(axes, "")
    return figure


def _arrow(axes: Axes, event: Event, ranks: int, *, bend: float, width: float) -> Point:
    """An arrow in the sender's colour, dashed if the message overwrites; returns its middle."""
    start, end = place(event.src, ranks), place(event.dst, ranks)
    _message(axes, event, start, end, width, bend=bend, gap=17)
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2


def _message(
    axes: Axes, event: Event, start: Point, end: Point, width: float, *, bend: float, gap: float
) -> None:
    look: Look = {"shrinkA": gap, "shrinkB": gap, "mutation_scale": 11}
    look |= {"linestyle": "-" if event.reduce else (0, (3, 2))}
    bent = f"arc3,rad={bend}"
    arrow(axes, start, end, RANK[event.src % 8], width, connectionstyle=bent, **look)


def _bare(axes: Axes, title: str) -> None:
    wide, high = REACH
    axes.set(xlim=(-wide, wide), ylim=(-high, high), aspect="equal")
    axes.set_title(title, fontsize=style.TITLE, weight="bold", pad=2)
    axes.set_axis_off()


def link_lanes(replays: Mapping[str, Replay]) -> Figure:
    """Incoming and outgoing messages at rank 0's link, over time, for each schedule.

    Time counts bytes only, in units of the time that one whole tensor takes. A bar has the colour
    of its sender, and its number where there is room.
    """
    panels = {title: link(replay, 0) for title, replay in replays.items()}
    return plots.lanes(panels, (3.4, 0.85 * len(replays) + 0.45), x_label=TIME, numbers=True)


def link(replay: Replay, rank: int) -> dict[str, list[Cell]]:
    """Rows of a rank's link: messages that come in, and those that leave it."""
    found = dict[str, list[Cell]]()
    for name, own in zip(("in", "out"), lanes(replay, rank), strict=True):
        found[name] = [
            Cell(str(src) if length > 0.5 else "", (RANK[src % 8], 0.55), length, start)
            for start, length, src in own
        ]
    return found


def lanes(replay: Replay, rank: int) -> tuple[Sequence[tuple[float, float, int]], ...]:
    """(start, length, sender) of each message that comes in at `rank`, and of each that leaves it.

    A step lasts as long as the largest message in it.
    """
    coming, leaving = list[tuple[float, float, int]](), list[tuple[float, float, int]]()
    now = 0.0
    for step in range(replay.steps):
        sent = shares(replay, [event for event in replay.events if event.step == step])
        for (src, dst), share in sent.items():
            if rank in (src, dst):
                (leaving if rank == src else coming).append((now, share, src))
        now += max(sent.values())
    return coming, leaving
