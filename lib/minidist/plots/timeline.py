"""The picture of what ran when: spans on the lanes of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS
from minidist.profiler.spans import Row, Span, rows

BAR = 0.74  # of a row's height
GAP = 0.5  # rows between two ranks
FREE = 0.9  # of a bar that its name may fill
KNOWN = ("forward", "backward", "bucket", "optimizer")  # the first colours, in all pictures


def gantt(spans: Iterable[Span], *, names: Sequence[str] | None = None) -> Figure:
    """What ran when: for each rank a row for each lane, in milliseconds since the first span.

    A bar has its name in it where there is room, or else only the last word of it ("3" of
    "bucket 3"); its colour says which kind it is of. Bars of a lane that overlap are on rows of
    their own.

    Args:
        spans: of any number of ranks of one host, as `Timeline.spans` has them.
        names: what to call rank 0, 1, ... if they are something else, such as strategies.

    Raises:
        ValueError: there are no spans.
    """
    lines = rows(spans)
    if not lines:
        raise ValueError("gantt: expected at least one span")
    colors = _colors(lines)
    heights = _heights(lines)
    figure, grid = style.subplots(size=(7.2, 0.3 * (heights[-1] + 1) + 1.2))
    axes: Axes = grid[0, 0]
    zero = min(span.start for row in lines for span in row.spans)
    bars = [
        (span.name, _bar(axes, span, height, zero, colors[_kind(span.name)]))
        for row, height in zip(lines, heights, strict=True)
        for span in row.spans
    ]
    _label(axes, [f"{_rank(row.rank, names)}: {row.lane}" for row in lines], heights)
    patches = [
        Patch(facecolor=color, edgecolor="black", lw=0.4, alpha=0.6, label=kind)
        for kind, color in colors.items()
    ]
    style.legend_below(figure, 4, patches)
    figure.draw_without_rendering()  # only now is it known how wide a bar is
    for name, bar in bars:
        _write(axes, name, bar)
    return figure


def _colors(lines: list[Row]) -> dict[str, str]:
    """The colour of each kind there is, known ones first."""
    there = list(dict.fromkeys(_kind(span.name) for row in lines for span in row.spans))
    all_kinds = [*KNOWN, *(kind for kind in there if kind not in KNOWN)]
    return {kind: COLORS[i % 7] for i, kind in enumerate(all_kinds) if kind in there}


def _kind(name: str) -> str:
    """What bars of one colour have in common: "bucket" of "bucket 3"."""
    first, _, number = name.rpartition(" ")
    return first if number.isdigit() and first else name


def _heights(lines: list[Row]) -> list[float]:
    """Where each row is, downward; there is a gap between two ranks."""
    ranks = [row.rank for row in lines]
    return [place + GAP * len(set(ranks[: place + 1]) - {ranks[0]}) for place in range(len(lines))]


def _bar(axes: Axes, span: Span, height: float, zero: float, color: str) -> Rectangle:
    left, length = (span.start - zero) * 1e3, (span.end - span.start) * 1e3
    bar = Rectangle(
        (left, height - BAR / 2),
        length,
        BAR,
        facecolor=color,
        alpha=0.6,
        edgecolor="black",
        linewidth=0.4,
    )
    axes.add_patch(bar)
    return bar


def _rank(rank: int, names: Sequence[str] | None) -> str:
    return names[rank] if names else f"rank {rank}"


def _label(axes: Axes, names: list[str], heights: list[float]) -> None:
    """Name each lane once, at its first row, and set the axes round all bars."""
    ticks = [place for place, name in enumerate(names) if name not in names[:place]]
    axes.set_yticks([heights[place] for place in ticks], [names[place] for place in ticks])
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylim(heights[-1] + 0.6, -0.6)
    axes.set_xlabel("milliseconds")
    axes.tick_params(axis="y", length=0)
    style.chart(axes, labelsize=8)


def _write(axes: Axes, name: str, bar: Rectangle) -> None:
    """Put the name into the bar, whole or its last word, if there is room for it."""
    x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2
    for words in (name, name.split()[-1] if name.split() else ""):
        text = axes.text(x, y, words, ha="center", va="center_baseline", fontsize=8)
        if text.get_window_extent().width <= FREE * bar.get_window_extent().width:
            return
        text.remove()
