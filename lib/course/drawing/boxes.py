"""Parts of most figures: one panel or a stack of them, boxes with text, and arrows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import cos, pi, sin
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from minidist.plots import style
from minidist.plots.style import GREY, RANK
from minidist.schedule.replay import Event, Replay

T = TypeVar("T")
Look = dict[str, Any]
Point = tuple[float, float]


def single(*, size: Point, **options: Any) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, grid = style.subplots(size=size, **options)
    return figure, grid[0, 0]


def sketch(size: Point, x: Point, y: Point, *, margin: float | None = None) -> tuple[Figure, Axes]:
    """One panel without axes that shows these spans; `margin`: its share of each side."""
    figure, axes = single(size=size, **({} if margin is None else {"layout": "none"}))
    if margin is not None:
        figure.subplots_adjust(margin, margin, 1 - margin, 1 - margin)
    axes.set(xlim=x, ylim=y)
    axes.set_axis_off()
    return figure, axes


def stacked(
    panels: Mapping[str, T],
    size: Point,
    *,
    fontsize: float = style.TITLE,
    pad: float | None = None,
    **options: Any,
) -> tuple[Figure, list[tuple[Axes, T]]]:
    """Panels with their titles, one above the other; each comes with what it shows."""
    figure, grid = style.subplots(len(panels), 1, size=size, **options)
    for axes, title in zip(grid[:, 0], panels, strict=True):
        axes.set_title(title, fontsize=fontsize, pad=pad, loc="left")
    return figure, list(zip(grid[:, 0], panels.values(), strict=True))


def table_rows(
    axes: Axes, names: Iterable[object], right: float, *, left: float = -0.05, offset: float = 0.5
) -> None:
    """Name the rows of a table, `offset` below their tops, and show it from `left` to `right`."""
    style.name_rows(axes, map(str, names), offset)
    axes.set(xlim=(left, right), xticks=[])
    style.table(axes)


def rank_names(ranks: int) -> list[str]:
    """Labels for rows of ranks."""
    return [f"rank {rank}" for rank in range(ranks)]


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str = "",
    *,
    edge: str = GREY,
    face: tuple[str, float] | None = None,
    linewidth: float = 0.8,
    dashed: bool = False,
    fontsize: float = style.LABEL,
) -> None:
    """A border, filled with `face` (a colour and its opacity), and a text in the middle."""
    style.outline(axes, x, y, edge, width=width, height=height, linewidth=linewidth, facecolor=face)
    axes.patches[-1].set(linestyle="--" if dashed else "-")
    if text:
        style.write(axes, x + width / 2, y + 0.52 * height, text, fontsize)


def stripes(
    axes: Axes, x: float, y: float, who: Sequence[int], *, width: float = 1, height: float = 1
) -> None:
    """A cell with a stripe for each rank whose part is in it."""
    for number, rank in enumerate(who):
        each = width / len(who)
        style.fill(axes, x + number * each, y, RANK[rank % 8], width=each, height=height)


def arrow(
    axes: Axes, start: Point, end: Point, color: str, linewidth: float, **options: Any
) -> None:
    """An arrow with a filled head; `options` are those of `FancyArrowPatch`."""
    look: Look = {"arrowstyle": "-|>", "color": color, "linewidth": linewidth} | options
    axes.add_patch(FancyArrowPatch(start, end, **look))


def note(axes: Axes, x: float, y: float, text: str, ha: str = "left", **options: Any) -> None:
    """A text beside a point, at its height; `options` are those of `Text`."""
    look: Look = {"fontsize": style.TITLE, "va": "center"} | options
    axes.text(x, y, text, ha=ha, **look)


def clockwise(place: float, places: int, wide: float = 1.0, high: float = 1.0) -> Point:
    """A place on an ellipse of these radii: place 0 on top, the others clockwise."""
    angle = 2 * pi * place / places
    return wide * sin(angle), high * cos(angle)


def names_left(axes: Axes, x: float, names: Mapping[float, str]) -> None:
    """Bold names of rows, which end at `x`; each at its height."""
    for y, name in names.items():
        note(axes, x, y, name, "right", fontsize=9, fontweight="bold")


def dot(axes: Axes, x: float, y: float, rank: int) -> None:
    """A rank: its number on its colour."""
    color = RANK[rank % len(RANK)]
    axes.plot(x, y, "o", markersize=13, color=color, markeredgecolor=GREY, zorder=4)
    look: Look = {"ha": "center", "va": "center_baseline", "fontsize": 8, "zorder": 5}
    axes.text(x, y, str(rank), color=ink(color), **look)


def ink(color: str) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else "white"


def shares(replay: Replay, events: Sequence[Event]) -> dict[tuple[int, int], float]:
    """Share of the tensor that these events send, by (from, to)."""
    pairs = Counter((event.src, event.dst) for event in events)
    return {pair: count / replay.chunks for pair, count in pairs.items()}
