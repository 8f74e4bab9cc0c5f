"""Pictures for choosing an algorithm: who wins where, and paths through nodes and memory."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Wedge
from matplotlib.ticker import FixedLocator

from course.drawing.sketches import Look, arrow, clockwise, dot, sketch
from minidist.plots import style
from minidist.plots.cells import Cell, cells, numbered
from minidist.plots.curves import in_bytes
from minidist.plots.style import COLORS, GREY, LABEL, RANK, TITLE

OPACITY = {"LL": 0.2, "LL128": 0.42, "Simple": 0.66}  # of protocols


def winners(
    best: Mapping[str, Mapping[int, Sequence[str]]],
    sizes: Sequence[float],
    names: Sequence[str],
    marks: Mapping[str, float] | None = None,
    *,
    y_label: str = "ranks",
) -> Figure:
    """Which algorithm is the fastest: tensor size to the right, ranks or nodes upward.

    `best`: title → number of ranks → the winner's name, one of `names`, at each of `sizes`; after
    a comma a name has a protocol; `marks`: name → bytes of a line from top to bottom, beside which
    no region is named.
    """
    tall = max(2.1, 0.19 * max(map(len, best.values())))
    figure, panels = style.stacked(best, (3.6, tall * len(best) + 0.2), sharex=True)
    for axes, rows in panels:
        _regions(axes, rows, sizes, names, list((marks or {}).values()))
        style.chart(axes, y_label=y_label)
        for name, at in (marks or {}).items():
            axes.axvline(at, color="black", lw=1.2, ls="--")
            style.on_top(axes, at, name)
    axes.set_xlabel("bytes in the tensor", fontsize=TITLE)
    return figure


def _regions(
    axes: Axes,
    rows: Mapping[int, Sequence[str]],
    sizes: Sequence[float],
    names: Sequence[str],
    marks: Sequence[float],
) -> None:
    index = np.array([[names.index(name) for name in rows[ranks]] for ranks in rows])
    colors = ListedColormap([_shade(name) for name in names])
    look: Look = {"cmap": colors, "vmin": -0.5, "vmax": len(names) - 0.5}
    look |= {"rasterized": True}  # or seams show between the cells
    axes.pcolormesh(sizes, np.arange(len(rows)), index, shading="nearest", **look)
    _border(axes, sizes, [[name.partition(", ")[0] for name in row] for row in rows.values()])
    for which in np.unique(index):  # its name, in the middle of its wide rows, where most room is
        wide = (index == which).sum(axis=1)
        rows_of = np.flatnonzero(wide > 0.7 * wide.max())
        row = int(rows_of[(len(rows_of) - 1) // 2])
        place = np.flatnonzero(index[row] == which)
        if len(place) > len(sizes) / 7:
            ends = sorted([sizes[place[0]], sizes[place[-1]], *marks])
            ends = [end for end in ends if sizes[place[0]] <= end <= sizes[place[-1]]]
            low, high = max(pairwise(ends), key=lambda pair: pair[1] / pair[0])
            name = names[int(which)]
            if len(rows_of) > 2:
                name = name.replace("-", "-\n").replace(" ", "\n")
            style.write(axes, np.sqrt(low * high), row, name, LABEL)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(0, 51, 5)]))
    axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
    axes.set_yticks(range(len(rows)), [f"{ranks:,}" for ranks in rows])


def _border(axes: Axes, sizes: Sequence[float], rows: Sequence[Sequence[str]]) -> None:
    """A line where the algorithm changes, as colors of two may be alike."""
    middles = np.sqrt(np.array(sizes[1:]) * np.array(sizes[:-1]))
    edges = [sizes[0] ** 2 / middles[0], *middles, sizes[-1] ** 2 / middles[-1]]
    look: Look = {"color": "black", "lw": 1.1}
    for y, row in enumerate(rows):
        for x, name in enumerate(row):
            if x and row[x - 1] != name:
                axes.plot([edges[x]] * 2, [y - 0.5, y + 0.5], **look)
            if y and rows[y - 1][x] != name:
                axes.plot(edges[x : x + 2], [y - 0.5] * 2, **look)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(-0.5, len(rows) - 0.5))


def _shade(name: str) -> tuple[float, float, float, float]:
    """The color of an algorithm, the lighter the less bandwidth its protocol has."""
    algorithm, _, protocol = name.removeprefix("binomial ").partition(", ")
    return to_rgba(style.color_of(algorithm), OPACITY.get(protocol, 0.55))


def protocols(parts: Mapping[str, tuple[int, int]], size: int = 128) -> Figure:
    """As many bytes of a message by each protocol: data, and the flags among them.

    `parts`: name → bytes of data, and of the flag behind each; of none, one follows at the end.
    """
    data, flag = (GREY, 0.3), (COLORS[1], 0.75)
    rows: dict[str, list[Cell]] = {}
    for name, (count, flags) in parts.items():
        times = size // (count + flags) if flags else 1
        pair = [Cell("", data, count if flags else size), Cell("", flag, flags)]
        rows[name] = [cell for cell in pair * times if cell.wide]
    figure, axes = style.single(size=(3.7, 0.36 * len(parts) + 1.0))
    cells(axes, rows, tall=0.6, margin=0)
    numbered(axes)
    axes.set_xticks(range(0, size + 1, size // 4))
    axes.set_xlabel("bytes sent", fontsize=TITLE)
    looks = [Patch(label=name, facecolor=face) for name, face in (("data", data), ("flag", flag))]
    style.legend_below(figure, 2, looks)
    return figure


def ring_path(count: int, local: int, inside: str, between: str) -> Figure:
    """The hops of a ring over `count` nodes of `local` ranks, clockwise from the top.

    `inside`: what a hop in a node costs; `between`: what a hop from node to node costs.
    """
    ranks = count * local
    figure, axes = sketch((3.4, 3.4), (-1.55, 1.55), (-1.55, 1.55), margin=0)
    axes.set_aspect("equal")
    at, turn = partial(clockwise, places=ranks), 360 / ranks
    for node in range(count):
        begin, end = 90 - (node * local + local - 0.62) * turn, 90 - (node * local - 0.38) * turn
        axes.add_patch(Wedge((0, 0), 1.17, begin, end, width=0.34, color=GREY, alpha=0.16, lw=0))
        middle = at((node + 0.5) * local - 0.5, wide=0.62, high=0.62)
        style.write(axes, *middle, f"node {node}", TITLE)
    for rank in range(ranks):
        leaves = (rank + 1) % local == 0
        color, width, head = (COLORS[1], 3, 12) if leaves else (GREY, 1.2, 8)
        look = {"shrinkA": 8, "shrinkB": 8, "mutation_scale": head}
        arrow(axes, at(rank), at(rank + 1), color, width, **look)
        if leaves:
            style.write(axes, *at(rank + 0.5, wide=1.33, high=1.33), between, TITLE)
        dot(axes, *at(rank), rank)
    text = f"once round:\n{ranks - count} × {inside}\n+ {count} × {between}"
    style.write(axes, 0, 0, text, TITLE)
    return figure


def one_memory(ranks: int = 4) -> Figure:
    """Three panels; a row is a rank's segment, a column a chunk, a colour the rank that acts."""
    figure, grid = style.subplots(1, 3, size=(3.6, 1.7))
    titles = ("1  copy in", "2  sum a column", "3  copy out")
    for number, (axes, title) in enumerate(zip(grid[0], titles, strict=True)):
        rows = [[_segment(number, row, column) for column in range(ranks)] for row in range(ranks)]
        cells(axes, rows, range(ranks), range(ranks), title=title, x_label="chunk")
    grid[0, 0].set_ylabel("segment of rank", fontsize=LABEL)
    return figure


def _segment(panel: int, row: int, column: int) -> Cell:
    """In step 1 a rank writes its row, in 2 it reads its column, in 3 all read the diagonal."""
    color = RANK[(row, column, column)[panel] % len(RANK)]
    face = (color, 0.55) if panel < 2 or row == column else None
    if panel and row == column:
        return Cell("Σ", face, edge=color, linewidth=1.8)
    return Cell("", face)
