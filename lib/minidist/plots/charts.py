"""Charts of a step: what is held in its phases, and what runs when."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.errors import checked
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PHASE
from minidist.profiler.spans import COMPUTE, Span, rows

BETWEEN = 0.2  # gap between two phases, in widths of a phase


@checked
def memory_curve(
    recorded: Mapping[str, Any], heights: Mapping[str, Mapping[str, float]] | None = None
) -> Figure:
    """Memory over the phases of a step in MB, a panel for each recording, all on one scale.

    Forward, backward and optimizer are equally wide and shaded. Within them allocations stand in
    their order, not at their time: a rank that had to wait would stretch a picture of time.

    Args:
        recorded: title → curve, such as one of `minidist.memory.meter`.
        heights: title → name → bytes: dashed lines, such as what was predicted, named below.
    """
    panels = len(recorded)
    size = 3.4, 0.4 + max(2.0, min(1.4 * panels, 5.4))  # and no taller than a screen
    figure, grid = style.subplots(panels, 1, size=size, sharey=True)
    dashed: dict[str, dict[str, Any]] = {}  # name → its look
    for axes, (title, one) in zip(grid.flat, recorded.items(), strict=True):
        at, phases = _by_phase(one)
        x, held = style.thinned(at, [nbytes / 1e6 for _, nbytes in one.points])
        for left, name in phases.items():
            axes.axvspan(left, left + 1, color=PHASE[name], alpha=0.14, lw=0)
        axes.fill_between(x, held, step="post", color=GREY, alpha=0.3, linewidth=0)
        axes.step(x, held, where="post", color=COLORS[0], linewidth=1)
        for name, nbytes in (heights or {}).get(title, {}).items():
            n = len(dashed)
            look = {"color": COLORS[3 + n % 4], "ls": style.DASHES[n % 3], "lw": 1.3}
            axes.axhline(nbytes / 1e6, label=name, **dashed.setdefault(name, look))
        axes.set_xticks([left + 0.5 for left in phases], list(phases.values()))
        if len(phases) > 3:  # of several steps: side by side they would touch
            axes.tick_params("x", rotation=20)
        axes.margins(x=0)
        style.chart(axes, title=f"{title}, MB", bare="x")
    grid[0, 0].set_ylim(bottom=0)
    if dashed:
        style.legend_below(figure, 2)
    return figure


def _by_phase(one: Any) -> tuple[list[float], dict[float, str]]:
    """Positions on the axis: of each point, and of the start of each phase, which is 1 wide."""
    times = [when for when, _ in one.points]
    points, x = [0], [0.0]  # the edges of phases, as numbers of points and on the axis
    phases: dict[float, str] = {}
    ends: dict[str, float] = {}
    for span in sorted(one.spans, key=lambda span: (span.start, -span.end)):
        phase = span.lane == COMPUTE and span.name in PHASE
        if not phase or span.end <= ends.get(span.name, -inf):  # within another one of its name
            continue
        ends[span.name] = span.end
        points += [bisect_left(times, span.start), bisect_left(times, span.end)]
        left = x[-1] + BETWEEN * (points[-2] > points[-3])
        x += [left, left + 1]
        phases[left] = span.name
    points.append(len(times) - 1)
    x.append(x[-1] + (BETWEEN if phases else 1) * (points[-1] > points[-2]))
    return np.interp(range(len(times)), points, x).tolist(), phases


BAR = 0.74  # height of a bar, in heights of a row
GAP = 1.0  # rows between two ranks, where the next one's name stands
LANE = 14  # letters per line in a lane's name
FREE = 0.9  # share of a bar that its name may fill


def gantt(spans: Iterable[Span], *, names: Sequence[str] | None = None) -> Figure:
    """Spans over time: for each rank a row for each lane, in milliseconds since the first span.

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
    ranks = sorted({row[0].rank for row in lines})
    heights = [at + GAP * ranks.index(row[0].rank) for at, row in enumerate(lines)]  # downward
    there = dict.fromkeys(_kind(span.name) for row in lines for span in row)
    others = (kind for kind in there if kind not in PHASE)
    colors = PHASE | {kind: COLORS[(3, 6)[i % 2]] for i, kind in enumerate(others)}
    look: dict[str, Any] = {"edgecolor": "black", "lw": 0.4, "alpha": 0.6}
    looks = {kind: {"facecolor": colors[kind], **look} for kind in colors if kind in there}
    figure, grid = style.subplots(size=(3.4, 0.3 * (heights[-1] + 2) + 1))
    axes: Axes = grid[0, 0]
    zero, bars = min(row[0].start for row in lines), []
    ticks: dict[tuple[int, str], float] = {}  # a lane is named at its first row, a rank above
    titles: dict[str, float] = {}
    for row, height in zip(lines, heights, strict=True):
        rank, lane = row[0][:2]
        ticks.setdefault((rank, fill(lane, LANE)), height)
        titles.setdefault(names[rank] if names else f"rank {rank}", height - 0.9)
        for *_, name, start, end in row:
            corner, length = ((start - zero) * 1e3, height - BAR / 2), (end - start) * 1e3
            bars.append((name, Rectangle(corner, length, BAR, **looks[_kind(name)])))
            axes.add_patch(bars[-1][1])
    axes.set_yticks(list(ticks.values()), [lane for _, lane in ticks])
    axes.set_yticks(list(titles.values()), list(titles), minor=True, fontsize=8, weight="bold")
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylim(heights[-1] + 0.6, -1.3)
    axes.tick_params(axis="y", length=0, which="both")
    style.chart(axes, x_label="milliseconds")
    style.legend_below(figure, 3, looks)
    figure.draw_without_rendering()  # only now is it known how wide a bar is
    for name, bar in bars:
        _write(axes, name, bar)
    return figure


def _kind(name: str) -> str:
    first, _, number = name.rpartition(" ")
    return first if number.isdigit() and first else name


def _write(axes: Axes, name: str, bar: Rectangle) -> None:
    x, y = bar.get_center()
    for words in (name, name.split()[-1] if name.split() else ""):
        text = axes.text(x, y, words, ha="center", va="center_baseline", fontsize=8)
        if text.get_window_extent().width <= FREE * bar.get_window_extent().width:
            return
        text.remove()
