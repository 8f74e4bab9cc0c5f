"""When buckets travel while backward computes: a pair of lanes for each strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, PHASE

HIGH, LINK = 0.8, 1.35  # height of a bar; where the lower lane begins


class Travel(NamedTuple):
    """A bucket: when its last gradient is there, and when its all-reduce begins and ends."""

    full: float
    start: float
    end: float


def bucket_timeline(
    backward: Sequence[tuple[str, float]], strategies: Mapping[str, Sequence[Travel]]
) -> Figure:
    """For each strategy, above what backward computes, below what the link carries.

    A dotted line leads from the moment at which a bucket is full to the one at which it leaves. A
    line across both lanes marks when the optimizer may step.

    Args:
        backward: the pieces of backward in order: name, and when it ends.
        strategies: name → the buckets in the order in which they leave. Times are milliseconds
            since backward began.
    """
    computed = backward[-1][1]
    last = max(travels[-1].end for travels in strategies.values())
    figure, grid = style.subplots(len(strategies), 1, size=(3.3, 1.12 * len(strategies) + 0.4))
    for axes, (name, travels) in zip(grid.flat, strategies.items(), strict=True):
        axes.set_xlim(0, 1.2 * last)
        begin = 0.0
        for piece, end in backward:
            _bar(axes, begin, end, 0, PHASE["backward"], piece)
            begin = end
        for number, travel in enumerate(travels):
            text = str(number) if len(travels) > 1 else "all"
            _bar(axes, travel.start, travel.end, LINK, PHASE["bucket"], text)
            axes.plot([travel.full, travel.start], [HIGH, LINK], ":", color=GREY, linewidth=1)
        done = max(computed, travels[-1].end)
        axes.plot([done, done], [-0.15, LINK + HIGH + 0.15], color=GREY, linewidth=1.5)
        axes.text(done + 0.01 * last, HIGH / 2, f"step at\n{done:.0f} ms", fontsize=8, va="center")
        axes.set_title(name, fontsize=9, loc="left", pad=3)
        axes.set_yticks([HIGH / 2, LINK + HIGH / 2], ["backward,\nlayer", "link,\nbucket"])
        axes.set_ylim(LINK + HIGH + 0.2, -0.25)
        style.chart(axes, labelsize=8)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelbottom=axes is grid[-1, 0])
    grid[-1, 0].set_xlabel("milliseconds since backward began", fontsize=8)
    return figure


def _bar(axes: Axes, start: float, end: float, top: float, color: str, text: str) -> None:
    """A bar with its name, if there is room; a little short, so that neighbours stay apart."""
    whole = axes.get_xlim()[1]
    look: dict[str, Any] = {"facecolor": (color, 0.45), "edgecolor": color, "linewidth": 0.8}
    axes.barh(top, end - start - 0.003 * whole, HIGH, start, align="edge", **look)
    if end - start > 0.045 * whole:
        axes.text((start + end) / 2, top + HIGH / 2, text, ha="center", va="center", fontsize=8)
