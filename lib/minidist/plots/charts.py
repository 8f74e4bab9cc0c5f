"""Charts of what was measured and predicted: over any quantity, and over the time of a step."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minidist.plots import style
from minidist.plots.style import COLORS, DASHES, GREY, MARKERS, PHASE
from minidist.profiler.spans import COMPUTE, Span, rows

NAME = 14  # letters in a line of a name
LINE = 0.075  # of a panel's height
BETWEEN = 0.2  # of a phase's width, for what comes between two
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}


class Curve(NamedTuple):
    """Points of one kind. Measured points get markers, predictions a dashed line.

    A curve without a label is one of a pair, such as the prediction of what another one measured.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    predicted: bool = False


def curves(
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    x_ticks: Mapping[float, str] | None = None,
    marks: Mapping[str, float] | None = None,
    y_log: bool = True,
) -> Figure:
    """Curves over a logarithmic x axis, each with its name at its end.

    Args:
        panels: what y is → curves. Panels stand one above the other and have the same axes.
        x_label: what x is.
        x_ticks: x → what is written there. If not given, powers of two.
        marks: name → x of a line from top to bottom.
        y_log: whether y is logarithmic, too.
    """
    size = 3.4, 2.5 * len(panels) + 0.3
    figure, grid = style.subplots(len(panels), 1, size=size, sharex=True, sharey=True)
    for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
        for curve in lines:
            color, dashes = COLORS[curve.color], DASHES[curve.color] if curve.predicted else "-"
            (line,) = axes.plot(curve.x, curve.y, color=color, ls=dashes, lw=1.4)
            if not curve.predicted:
                line.set(marker=MARKERS[curve.color], markersize=4)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if x_ticks:
            axes.set_xticks(list(x_ticks), list(x_ticks.values()))
        if y_log:
            axes.set_yscale("log")
        for name, at in (marks or {}).items():
            axes.axvline(at, color=GREY, lw=1, ls=":")
            top = {"transform": axes.get_xaxis_transform(), "va": "bottom", "ha": "center"}
            axes.text(at, 1, name, fontsize=8, **top)
        axes.set_title(title, fontsize=9, loc="left", pad=16 if marks else 6)
        axes.grid(alpha=0.3)
        style.chart(axes, labelsize=8)
    grid[-1, 0].set_xlabel(x_label, fontsize=9)
    for axes, lines in zip(grid[:, 0], panels.values(), strict=True):
        _name_ends(axes, [curve for curve in lines if curve.label])
    return figure


def _name_ends(axes: Axes, lines: Sequence[Curve]) -> None:
    """Write each curve's name beside its end, moved where it would touch another one."""
    low, high = axes.get_ylim()  # which also scales the axes
    if axes.get_yscale() == "log":
        low, high = math.log(low), math.log(high)
    ends = []
    for curve in lines:
        y = math.log(curve.y[-1]) if axes.get_yscale() == "log" else curve.y[-1]
        text = fill(curve.label, NAME, break_long_words=False)
        ends.append(((y - low) / (high - low), text, curve.color))
    ends.sort()
    heights = [end for end, *_ in ends]
    lines_of = [1 + text.count("\n") for _, text, _ in ends]
    apart = [LINE * (one + two) / 2 for one, two in pairwise(lines_of)]
    for i, gap in enumerate(apart):
        heights[i + 1] = max(heights[i + 1], heights[i] + gap)
    heights = [min(height, 1) for height in heights]
    for i, gap in reversed([*enumerate(apart)]):
        heights[i] = min(heights[i], heights[i + 1] - gap)
    for height, (_, text, color) in zip(heights, ends, strict=True):
        name = axes.text(1.03, height, text, transform=axes.transAxes, fontsize=8, va="center")
        name.set_color(COLORS[color])


def memory_curve(
    recorded: Mapping[str, Any],
    heights: Mapping[str, Mapping[str, float]] | None = None,
    *,
    unit: str = "MB",
) -> Figure:
    """Memory over the phases of a step, a panel for each recording, all on one scale of bytes.

    Forward, backward and optimizer are equally wide and shaded. Within them allocations stand in
    their order, not at their time: a rank that had to wait would stretch a picture of time.

    Args:
        recorded: title → curve, such as one of `minidist.memory.meter`.
        heights: title → name → bytes: dashed lines, such as what was predicted.
        unit: "GB", "MB", "kB" or "bytes".
    """
    scale, heights = UNITS[unit], heights or {}
    size = 3.4, 0.4 + 1.4 * len(recorded)
    figure, grid = style.subplots(len(recorded), 1, size=size, sharey=True)
    colors: dict[str, str] = {}  # of dashed lines
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        x, phases = _by_phase(one)
        held = [nbytes / scale for _, nbytes in one.points]
        for name, left, right in phases:
            axes.axvspan(left, right, color=PHASE[name], alpha=0.14, lw=0)
        axes.fill_between(x, held, step="post", color=GREY, alpha=0.3, linewidth=0)
        axes.step(x, held, where="post", color=COLORS[0], linewidth=1)
        for name, nbytes in heights.get(title, {}).items():
            text = "" if name in colors else name
            color = colors.setdefault(name, COLORS[3 + len(colors) % 4])
            style.height_line(axes, text, nbytes / scale, color)
        axes.set_xticks([(left + right) / 2 for _, left, right in phases], [p[0] for p in phases])
        axes.margins(x=0)
        style.chart(axes, labelsize=8)
        axes.tick_params(axis="x", length=0)
        axes.set_title(f"{title}, {unit}", fontsize=9, loc="left")
    grid[0, 0].set_ylim(bottom=0)
    return figure


def _by_phase(one: Any) -> tuple[list[float], list[tuple[str, float, float]]]:
    """Where each point stands, and each phase: its name, its left and its right edge."""
    times = [when for when, _ in one.points]
    points, x = [0], [0.0]  # the edges of phases, as numbers of points and on the axis
    phases = []
    for span in sorted(_outermost(one.spans), key=lambda span: span.start):
        points += [bisect_left(times, span.start), bisect_left(times, span.end)]
        left = x[-1] + BETWEEN * (points[-2] > points[-3])
        x += [left, left + 1]
        phases.append((span.name, left, left + 1))
    points.append(len(times) - 1)
    x.append(x[-1] + (BETWEEN if phases else 1) * (points[-1] > points[-2]))
    return np.interp(range(len(times)), points, x).tolist(), phases


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
GAP = 1.0  # rows between two ranks, where the next one's name stands
LANE = 14  # letters in a line of a lane's name
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
    figure, grid = style.subplots(size=(3.4, 0.3 * (heights[-1] + 2) + 1))
    axes: Axes = grid[0, 0]
    zero, bars = min(row[0].start for row in lines), []
    for row, height in zip(lines, heights, strict=True):
        for *_, name, start, end in row:
            corner, length = ((start - zero) * 1e3, height - BAR / 2), (end - start) * 1e3
            bars.append((name, Rectangle(corner, length, BAR, **looks[_kind(name)])))
            axes.add_patch(bars[-1][1])
    called = names or [f"rank {rank}" for rank in range(max(ranks) + 1)]
    ticks: dict[tuple[int, str], float] = {}  # a lane is named at its first row, a rank above
    titles: dict[str, float] = {}
    for row, height in zip(lines, heights, strict=True):
        ticks.setdefault((row[0].rank, fill(row[0].lane, LANE)), height)
        titles.setdefault(called[row[0].rank], height - 0.9)
    axes.set_yticks(list(ticks.values()), [lane for _, lane in ticks])
    axes.set_yticks(list(titles.values()), list(titles), minor=True, fontsize=8, weight="bold")
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylim(heights[-1] + 0.6, -1.3)
    axes.set_xlabel("milliseconds", fontsize=9)
    axes.tick_params(axis="y", length=0, which="both")
    style.chart(axes, labelsize=8)
    style.legend_below(figure, 3, [Patch(label=kind, **each) for kind, each in looks.items()])
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
