"""Rows of cells: what each rank holds, what a lane does over time, and bars laid end to end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import AutoLocator

from minidist.plots import style
from minidist.plots.style import GREY, RANK, Face, box


class Cell(NamedTuple):
    """A cell: it begins at `at`, or else where the one before ends; 0 wide, it is its text alone.

    `who`: ranks, each with a stripe in its colour. `high`: the rows that it reaches over.
    """

    text: str = ""
    face: Face | None = None
    wide: float = 1.0
    at: float | None = None
    who: Sequence[int] = ()
    edge: str | Face = GREY
    linewidth: float = 0.5
    dashed: bool = False
    hatch: str = ""
    high: float = 0.0


def bar(look: Mapping[str, Any], wide: float) -> Cell:
    """A cell of a bar, in a look such as `style.part_look` gives, which is also the legend's."""
    face = look["facecolor"], look.get("alpha", 1)
    linewidth = look.get("linewidth", 0.4)
    return Cell("", face, wide, edge="black", linewidth=linewidth, hatch=look.get("hatch", ""))


def ending(text: str) -> Cell:
    """A text where a row ends."""
    return Cell(text, wide=0)


def heading(text: str, wide: float, at: float) -> Cell:
    """A text without a border, in the middle of its place."""
    return Cell(text, wide=wide, at=at, linewidth=0)


def summed(who: Sequence[int], ranks: int, **options: Any) -> Cell:
    """A cell that names the ranks whose parts are in it; Σ is the sum of all."""
    whole = ranks > 1 and tuple(who) == tuple(range(ranks))
    return Cell("Σ" if whole else "+".join(map(str, who)), who=who, **options)


Rows = Sequence[Iterable[Cell]] | Mapping[str, Iterable[Cell]]  # without or with names


def of_ranks(rows: Iterable[Iterable[Cell]]) -> dict[str, Iterable[Cell]]:
    """Rows with the names of ranks."""
    return {f"rank {rank}": row for rank, row in enumerate(rows)}


def cells(
    axes: Axes,
    rows: Rows,
    names: Collection[object] = (),
    columns: Collection[object] = (),
    *,
    tall: float = 1.0,
    margin: float = 0.05,
    title: str = "",
    x_label: str = "",
    on_top: bool = False,
) -> float:
    """Rows of cells from top to bottom; returns where the longest one ends.

    `names`: of the rows, if they have none or some are the same; `tall`: share of a row that a cell
    fills; `on_top`: the names of columns stand above.
    """
    end = float(len(columns))
    lines, names = (rows.values(), names or rows) if isinstance(rows, Mapping) else (rows, names)
    for y, row in enumerate(lines):
        at = 0.0
        for each in row:
            at = at if each.at is None else each.at
            _draw(axes, at, y + (1 - tall) / 2, each.high or tall, each)
            at += each.wide
            end = max(end, at)
    style.table(axes, names, columns)
    axes.set(xlim=(-margin, end + margin), ylim=(len(rows) + 0.05, -0.05))
    axes.set_xlabel(x_label, fontsize=style.LABEL)
    if title:
        axes.set_title(title, fontsize=style.TITLE, loc="left")
    if on_top:
        axes.xaxis.tick_top()
    return end


def _draw(axes: Axes, x: float, y: float, high: float, cell: Cell) -> None:
    middle = y + 0.52 * high
    if not (cell.wide or cell.text):
        return
    if not cell.wide:
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
        axes.annotate(cell.text, (x, middle), (3, 0), fontsize=style.LABEL, **look)
        return
    for number, rank in enumerate(cell.who):
        each = cell.wide / len(cell.who)
        box(axes, x + number * each, y, each, high, face=(RANK[rank % 8], 0.4), linewidth=0)
    linewidth = max(cell.linewidth, 0.8 * cell.dashed)  # or dashes cannot be seen
    look = {"edge": cell.edge, "face": cell.face, "linewidth": linewidth}
    box(axes, x, y, cell.wide, high, cell.text, dashed=cell.dashed, hatch=cell.hatch, **look)


def lanes(
    panels: Mapping[str, Rows],
    size: tuple[float, float],
    *,
    x_label: str = "time",
    numbers: bool = False,
    tall: float = 0.76,
) -> Figure:
    """Lanes by name in panels by title, over the same time, or another axis that has `numbers`."""
    heights = [len(rows) + 0.5 for rows in panels.values()]
    figure, drawn = style.stacked(panels, size, sharex=True, height_ratios=heights)
    end = max(cells(axes, rows, tall=tall) for axes, rows in drawn)
    figure.axes[-1].set_xlim(0, 1.02 * end)
    figure.axes[-1].set_xlabel(x_label, fontsize=style.TITLE, loc="center" if numbers else "right")
    for axes in figure.axes if numbers else ():
        numbered(axes)
    return figure


def numbered(axes: Axes) -> None:
    """An axis with numbers below rows of cells."""
    axes.spines[["left", "bottom"]].set_visible(True)
    axes.xaxis.set_major_locator(AutoLocator())
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.tick_params(axis="x", length=3)
    axes.label_outer()


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    *,
    x_label: str,
    marks: tuple[str, Mapping[str, float]] | None = None,
    limit: tuple[str, float] | None = None,
) -> Figure:
    """A row for each bar: its parts, laid end to end, and their sum, or else its mark.

    `bars`: bar → part → amount; `marks`: their name, and the place of each bar's; `limit`: name and
    place of a line across all bars.
    """
    parts = dict.fromkeys(part for own in bars.values() for part in own)
    looks = {part: style.part_look(part, number) for number, part in enumerate(parts)}
    rows = {}
    for name, own in bars.items():
        sums = [] if marks else [ending(f"{sum(own.values()):,.0f}")]
        rows[name] = [*(bar(looks[part], amount) for part, amount in own.items()), *sums]
    figure, axes = style.single(size=(3.7, 0.36 * len(bars) + 1.1))
    end = cells(axes, rows, tall=0.6, margin=0)
    numbered(axes)
    handles: list[Artist] = [Patch(label=part, **look) for part, look in looks.items()]
    if marks:
        axes.set_xlim(right=1.03 * end)  # no sum stands there, but the longest bar has an edge
        at = [marks[1][name] for name in bars]
        look: dict[str, Any] = {"color": "black", "ls": "", "marker": "|", "mew": 2.5}
        axes.plot(at, [row + 0.5 for row in range(len(at))], ms=14, **look)
        handles.append(Line2D([], [], label=marks[0], ms=7, **look))
    if limit:
        axes.axvline(limit[1], color="black", linestyle="--", linewidth=1)
        style.on_top(axes, limit[1], limit[0])
    axes.set_xlabel(x_label, fontsize=style.TITLE)
    style.legend_below(figure, 2, handles)
    return figure
