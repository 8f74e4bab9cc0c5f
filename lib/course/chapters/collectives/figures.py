"""Pictures of collectives: what ranks hold before and after, and when the program waits."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.boxes import box, rank_names, stacked, stripes, table_rows
from minidist.plots import style
from minidist.plots.style import COLORS, WORK
from minidist.schedule.replay import Contributors, Replay, State


def before_after(replays: Mapping[str, Replay]) -> Figure:
    """Every rank's input and output: two grids side by side for each name and replay.

    Rows are ranks, columns are chunks. A cell names the ranks whose parts are in it; a sum over all
    ranks is Σ. Blank is what a rank does not bring or is not promised. In an all-to-all a row has
    the N blocks of a rank, as `from→for`. What does not end as promised is outlined.
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
            stripes(axes, x, rank, who)
            if who != wanted[chunk]:
                style.outline(axes, x, rank, COLORS[1], linewidth=2)
            text = f"{chunk // width}→{chunk % width}" if blocks else _sum(who, replay.ranks)
            style.write(axes, x + 0.5, rank + 0.53, text)
    for x, rank in np.ndindex(width, replay.ranks):
        style.outline(axes, x, rank)
    table_rows(axes, rank_names(replay.ranks), columns + 0.05)


def _blocks(replay: Replay) -> bool:
    """True if each rank brings N of N x N chunks, one for each rank: too wide for a grid."""
    brings = {sum(map(bool, row)) for row in replay.start}
    return replay.chunks == replay.ranks**2 > 1 and brings == {replay.ranks}


def _sum(who: Contributors, ranks: int) -> str:
    return "Σ" if ranks > 1 and who == tuple(range(ranks)) else "+".join(map(str, who))


def in_a_row(
    rows: Mapping[str, tuple[Replay, Replay]], names: Mapping[str, Sequence[str]]
) -> Figure:
    """Three grids for each pair of collectives: before, after the first, after the second.

    A grid is as in `before_after`. `rows`: title → the replays of the first one and of both
    together; `names`: title → what the two are called.
    """
    figure, grid = style.subplots(len(rows), 3, size=(3.45, 1.35 * len(rows)))
    for line, (title, (first, both)) in zip(grid, rows.items(), strict=True):
        states = first.start, _promised(first), _promised(both)
        headings = title, *(f"→ {name}" for name in names[title])
        for axes, state, heading in zip(line, states, headings, strict=True):
            for rank, row in enumerate(state):
                for chunk, who in enumerate(row):
                    stripes(axes, chunk, rank, who)
                    box(axes, chunk, rank, 1, 1, _sum(who, first.ranks), linewidth=0.5)
            axes.set_title(heading, fontsize=8, loc="left")
            table_rows(axes, range(first.ranks), first.chunks + 0.05)
    return figure


def _promised(replay: Replay) -> State:
    """The replay's final state, where its collective promises something."""
    pairs = zip(replay.state(), replay.goal, strict=True)
    return tuple(
        tuple(who if want else () for who, want in zip(*row, strict=True)) for row in pairs
    )


Held = Sequence[Sequence[Sequence[int]]]  # node → its ranks → whose parts each has


def mesh_sums(states: Sequence[tuple[str, Held]]) -> Figure:
    """The content of each rank of a mesh, in panels; the groups that sum next are circled.

    `states`: title → what each rank holds. The first panel circles rows, the second one columns.
    """
    figure, grid = style.subplots(1, len(states), size=(3.45, 1.65))
    for at, (axes, (title, held)) in enumerate(zip(grid[0], states, strict=True)):
        nodes, local = len(held), len(held[0])
        for node, row in enumerate(held):
            for place, who in enumerate(row):
                x, y = place + 0.1, node + 0.12
                stripes(axes, x, y, who, width=0.8, height=0.76)
                text = "+".join(map(str, who)) if len(who) < 4 else "Σ"
                box(axes, x, y, 0.8, 0.76, text, linewidth=0.5)
        rows = [(-0.08, node + 0.02, local + 0.16, 0.96) for node in range(nodes)]
        columns = [(place + 0.02, -0.08, 0.96, nodes + 0.16) for place in range(local)]
        for frame in (rows, columns, [])[at]:
            box(axes, *frame, linewidth=1.2, dashed=True)
        axes.set_title(title, fontsize=8)
        table_rows(axes, [f"node {node}" for node in range(nodes)], local + 0.2, left=-0.2)
        axes.set_ylim(nodes + 0.2, -0.2)
        axes.tick_params(labelleft=at == 0)
    return figure


Lane = Mapping[str, tuple[float, float]]  # what it does → from, to
GLOO: Mapping[str, Lane] = {
    "program": {"call": (0, 1), "compute A": (1, 4), "wait()": (4, 6.5), "use sum": (6.5, 8.5)},
    "messages": {"all_reduce": (1, 6.5)},
}
NCCL: Mapping[str, Lane] = {
    "program": {
        "call": (0, 1),
        "queue A": (1, 2.4),
        "wait()": (2.4, 3.5),
        "queue use": (3.5, 5.2),
        "goes on": (5.2, 8.5),
    },
    "GPU stream": {"compute A": (1.6, 4.6), "stream waits": (4.6, 6.8), "use sum": (6.8, 8.5)},
    "NCCL stream": {"all_reduce": (1.3, 6.8)},
}


def waiting() -> Figure:
    """Two panels over the same time: Gloo with two lanes, NCCL with three."""
    panels = {"Gloo, on CPUs": GLOO, "NCCL, on GPUs": NCCL}
    heights = [len(lanes) + 0.5 for lanes in panels.values()]
    figure, drawn = stacked(panels, (3.7, 0.42 * sum(heights)), height_ratios=heights)
    for axes, lanes in drawn:
        for y, lane in enumerate(lanes.values()):
            for text, (start, end) in lane.items():
                color = WORK["communication" if text == "all_reduce" else "compute"]
                idle = text == "stream waits" or (text == "wait()" and lanes is GLOO)
                face = None if idle else (color, 0.4)
                box(axes, start, y + 0.1, end - start, 0.8, text, face=face, dashed=idle)
        table_rows(axes, lanes, 8.6, left=0)
    axes.set_xlabel("time →", fontsize=8, loc="right")
    return figure
