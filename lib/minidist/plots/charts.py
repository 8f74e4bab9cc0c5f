"""Charts of what was measured and predicted: over any quantity, and over the time of a step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, MARKERS, PHASE
from minidist.profiler.spans import COMPUTE, Span, rows

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    predicted: bool = False


def curves(
    data: Iterable[Curve], *, x_label: str, y_label: str, x_base: int = 10, y_log: bool = True
) -> Figure:
    """Measured and predicted figures over a logarithmic x axis."""
    figure, grid = style.subplots(size=(6.4, 4.4))
    axes: Axes = grid[0, 0]
    for curve in data:
        color, dashes = COLORS[curve.color], "--" if curve.predicted else "-"
        (line,) = axes.plot(curve.x, curve.y, dashes, color=color, lw=1.4, label=curve.label)
        if not curve.predicted:
            line.set(marker=MARKERS[curve.color], markersize=5)
    axes.grid(alpha=0.3)
    axes.set_xscale("log", base=x_base)
    if y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure


def memory_curve(
    recorded: Mapping[str, Any],
    heights: Mapping[str, Mapping[str, float]] | None = None,
    *,
    unit: str = "MB",
) -> Figure:
    """Memory over a step, a panel for each recording, all on one scale of bytes and of time.

    Forward, backward and optimizer are shaded, where they were recorded.

    Args:
        recorded: title → curve, such as one of `minidist.memory.meter`.
        heights: title → name → bytes: dashed lines, such as what was predicted.
        unit: "GB", "MB", "kB" or "bytes".
    """
    scale, heights = UNITS[unit], heights or {}
    size = 7.2, 0.9 + 1.9 * len(recorded)
    figure, grid = style.subplots(len(recorded), 1, size=size, sharex=True, sharey=True)
    names = list(dict.fromkeys(name for own in heights.values() for name in own))
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        for span in _outermost(one.spans):
            phase = 1e3 * span.start, 1e3 * span.end
            axes.axvspan(*phase, color=PHASE[span.name], alpha=0.14, lw=0, label=span.name)
        when, held = zip(*((1e3 * t, nbytes / scale) for t, nbytes in one.points), strict=True)
        axes.fill_between(when, held, step="post", color=GREY, alpha=0.3, linewidth=0)
        axes.step(when, held, where="post", color=COLORS[0], linewidth=1)
        for name, nbytes in heights.get(title, {}).items():
            color = COLORS[3 + names.index(name) % 4]
            axes.axhline(nbytes / scale, color=color, linestyle="--", linewidth=1.3, label=name)
        style.chart(axes, labelsize=8)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylabel(unit)
    grid[-1, 0].set_xlabel("milliseconds")
    grid[0, 0].set_ylim(bottom=0)
    style.legend_below(figure, 3)
    return figure


def _outermost(spans: Iterable[Span]) -> list[Span]:
    """Phases of computing, without those that lie in another one of their name."""
    phases = [span for span in spans if span.lane == COMPUTE and span.name in PHASE]
    return [
        one
        for one in phases
        if not any(
            other is not one
            and other.name == one.name
            and other.start <= one.start
            and one.end <= other.end
            for other in phases
        )
    ]


# ---- what ran when ----

BAR = 0.74  # of a row's height
GAP = 0.5  # rows between two ranks
FREE = 0.9  # of a bar that its name may fill


def gantt(spans: Iterable[Span], *, names: Sequence[str] | None = None) -> Figure:
    """What ran when: for each rank a row for each lane, in milliseconds since the first span.

    A bar has its name in it where there is room, or else only the last word of it ("3" of
    "bucket 3"); its colour says which kind it is of. Bars of a lane that overlap are on rows of
    their own.

    Args:
        spans: of any number of ranks of one host, as `Timeline.spans` has them; at least one.
        names: what to call rank 0, 1, ... if they are something else, such as strategies.
    """
    lines = rows(spans)
    if not lines:
        raise ValueError("gantt: expected at least one span")
    ranks = [row[0].rank for row in lines]  # downward, with a gap between two
    heights = [at + GAP * len(set(ranks[: at + 1]) - {ranks[0]}) for at in range(len(ranks))]
    there = dict.fromkeys(_kind(span.name) for row in lines for span in row)
    others = (kind for kind in there if kind not in PHASE)
    colors = PHASE | {kind: COLORS[(3, 6)[i % 2]] for i, kind in enumerate(others)}
    look: dict[str, Any] = {"edgecolor": "black", "lw": 0.4, "alpha": 0.6}
    looks = {kind: {"facecolor": colors[kind], **look} for kind in colors if kind in there}
    figure, grid = style.subplots(size=(7.2, 0.3 * (heights[-1] + 1) + 1.2))
    axes: Axes = grid[0, 0]
    zero, bars = min(row[0].start for row in lines), []
    for row, height in zip(lines, heights, strict=True):
        for *_, name, start, end in row:
            corner, length = ((start - zero) * 1e3, height - BAR / 2), (end - start) * 1e3
            bars.append((name, Rectangle(corner, length, BAR, **looks[_kind(name)])))
            axes.add_patch(bars[-1][1])
    called = names or [f"rank {rank}" for rank in range(max(ranks) + 1)]
    first: dict[str, float] = {}  # the height at which a lane is named: that of its first row
    for row, height in zip(lines, heights, strict=True):
        first.setdefault(f"{called[row[0].rank]}: {row[0].lane}", height)
    axes.set_yticks(list(first.values()), list(first))
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylim(heights[-1] + 0.6, -0.6)
    axes.set_xlabel("milliseconds")
    axes.tick_params(axis="y", length=0)
    style.chart(axes, labelsize=8)
    style.legend_below(figure, 4, [Patch(label=kind, **each) for kind, each in looks.items()])
    figure.draw_without_rendering()  # only now is it known how wide a bar is
    for name, bar in bars:
        _write(axes, name, bar)
    return figure


def _kind(name: str) -> str:
    """What bars of one colour have in common: "bucket" of "bucket 3"."""
    first, _, number = name.rpartition(" ")
    return first if number.isdigit() and first else name


def _write(axes: Axes, name: str, bar: Rectangle) -> None:
    """Put the name into the bar, whole or its last word, if there is room for it."""
    x, y = bar.get_center()
    for words in (name, name.split()[-1] if name.split() else ""):
        text = axes.text(x, y, words, ha="center", va="center_baseline", fontsize=8)
        if text.get_window_extent().width <= FREE * bar.get_window_extent().width:
            return
        text.remove()
