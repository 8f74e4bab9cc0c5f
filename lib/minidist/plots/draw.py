"""Pictures. Each takes data that a run or a simulation produced and returns a matplotlib figure.

Nothing here knows an algorithm: what is drawn is what `simulate`, `cost` or a run put in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.stepper import stepper
from minidist.schedule.simulate import Contributors, Replay, State

__all__ = ["Curve", "Span", "before_after", "curves", "gantt", "stepper", "trace"]

# Okabe and Ito's palette: told apart by colour-blind readers, and light and dark enough for both
# themes. The grey is readable on white and on black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def trace(replay: Replay) -> Figure:
    """What every rank holds, chunk by chunk, before the first step and after each one.

    A cell lists the ranks whose parts are summed in it, and fills up with their number; what the
    step has changed is outlined, a finished sum is green.
    """
    columns = min(3, replay.steps + 1)
    rows = -(-(replay.steps + 1) // columns)
    side = max(replay.chunks * 0.66, 2.2)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(columns * side, rows * (replay.ranks * 0.34 + 0.55)),
        squeeze=False,
        facecolor="none",
    )
    for after, axes in enumerate(grid.flat):
        if after > replay.steps:
            axes.set_axis_off()
        else:
            _panel(axes, replay, after)
    figure.tight_layout()
    return figure


def _panel(axes: Axes, replay: Replay, after: int) -> None:
    axes.set_title("start" if after == 0 else f"after step {after} of {replay.steps}", fontsize=9)
    changed = {(event.dst, event.chunk) for event in replay.events if event.step == after - 1}
    for rank, chunks in enumerate(replay.state(after)):
        for chunk, who in enumerate(chunks):
            done = who == replay.goal[rank][chunk]
            _cell(axes, chunk, rank, who, replay.ranks, done, (rank, chunk) in changed)
    axes.set_xlim(-0.05, replay.chunks + 0.05)
    axes.set_ylim(replay.ranks + 0.05, -0.05)
    axes.set_xticks(np.arange(replay.chunks) + 0.5, [f"{c}" for c in range(replay.chunks)])
    axes.set_yticks(np.arange(replay.ranks) + 0.5, [f"rank {r}" for r in range(replay.ranks)])
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)


def _cell(
    axes: Axes, x: int, y: int, who: Contributors, ranks: int, done: bool, changed: bool
) -> None:
    share = min(1.0, len(set(who)) / ranks)
    color = COLORS[2] if done else COLORS[0]
    axes.add_patch(Rectangle((x, y), share, 1, facecolor=color, alpha=0.35, linewidth=0))
    edge, width, above = (COLORS[1], 1.6, 3) if changed else (COLORS[6], 0.5, 2)
    box = Rectangle((x, y), 1, 1, fill=False, edgecolor=edge, linewidth=width, zorder=above)
    axes.add_patch(box)
    axes.text(x + 0.5, y + 0.54, "+".join(map(str, who)), ha="center", va="center", fontsize=6.5)


def before_after(replays: Mapping[str, Replay]) -> Figure:
    """What every rank brings and what it gets: two grids side by side for each name and replay.

    Rows of a grid are ranks, columns are chunks. A cell names the ranks whose parts are in it, in
    stripes of their colours; a sum over all ranks is Σ. Blank is what a rank does not bring, or
    what the collective does not promise. In an all-to-all each row shows the N blocks that the
    rank holds side by side, as `from→for`. What does not end as promised is outlined.
    """
    widths = [each.ranks if _blocks(each) else each.chunks for each in replays.values()]
    columns = max(4, *widths)  # or there is no room for the titles
    heights = [0.23 * each.ranks + 0.46 for each in replays.values()]
    figure, grid = plt.subplots(
        len(replays),
        2,
        figsize=(0.66 * columns + 0.66, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        facecolor="none",
        layout="constrained",
    )
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
            text = f"{chunk // width}→{chunk % width}" if blocks else _sum(who, replay.ranks)
            _stripes(axes, x, rank, who, text, wrong=who != wanted[chunk])
    for x, rank in np.ndindex(width, replay.ranks):
        axes.add_patch(Rectangle((x, rank), 1, 1, fill=False, edgecolor=COLORS[6], linewidth=0.5))
    axes.set_xlim(-0.05, columns + 0.05)
    axes.set_ylim(replay.ranks + 0.05, -0.05)
    axes.set_xticks([])
    axes.set_yticks(np.arange(replay.ranks) + 0.5, [f"rank {r}" for r in range(replay.ranks)])
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)


def _blocks(replay: Replay) -> bool:
    """Whether each rank brings N of N x N chunks, one for each rank: too wide for a grid."""
    brings = {sum(map(bool, row)) for row in replay.start}
    return replay.chunks == replay.ranks**2 > 1 and brings == {replay.ranks}


def _stripes(axes: Axes, x: int, y: int, who: Contributors, text: str, wrong: bool) -> None:
    for i, rank in enumerate(who):
        left, wide = x + i / len(who), 1 / len(who)
        color = COLORS[rank % 6]  # the seventh is the grey of the lines
        axes.add_patch(Rectangle((left, y), wide, 1, facecolor=color, alpha=0.4, linewidth=0))
    if wrong:
        axes.add_patch(
            Rectangle((x, y), 1, 1, fill=False, edgecolor=COLORS[1], linewidth=2, zorder=3)
        )
    axes.text(x + 0.5, y + 0.53, text, ha="center", va="center", fontsize=8)


def _sum(who: Contributors, ranks: int) -> str:
    return "Σ" if ranks > 1 and who == tuple(range(ranks)) else "+".join(map(str, who))


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
    figure, axes = plt.subplots(figsize=(6.4, 4.4), facecolor="none", layout="constrained")
    for curve in data:
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLORS[curve.color],
            linestyle="--" if curve.predicted else "-",
            marker=None if curve.predicted else MARKERS[curve.color],
            markersize=5,
            linewidth=1.4,
        )
    axes.set_xscale("log", base=x_base)
    if y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_facecolor("none")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


class Span(NamedTuple):
    """Something of kind `lane` that ran from `start` to `end`, in seconds of one clock."""

    lane: str
    name: str
    start: float
    end: float


def gantt(spans: Mapping[str, Sequence[Span]]) -> Figure:
    """What ran when: a block of lanes for each rank, on one clock."""
    lanes = list(dict.fromkeys((rank, span.lane) for rank, own in spans.items() for span in own))
    kinds = list(dict.fromkeys(lane for _, lane in lanes))
    zero = min(span.start for own in spans.values() for span in own)
    whole = (max(span.end for own in spans.values() for span in own) - zero) * 1e3
    figure, axes = plt.subplots(figsize=(7.2, 0.42 * len(lanes) + 0.9), facecolor="none")
    for rank, own in spans.items():
        for span in own:
            row, color = lanes.index((rank, span.lane)), COLORS[kinds.index(span.lane) % 7]
            left, length = (span.start - zero) * 1e3, (span.end - span.start) * 1e3
            axes.barh(row, length, left=left, height=0.66, color=color, alpha=0.6)
            if length > whole / 12:  # or its name would not fit in
                axes.text(left + length / 2, row, span.name, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(lanes)), [f"{rank}: {lane}" for rank, lane in lanes])
    axes.set_facecolor("none")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure
