"""A picture of an epoch: which rank draws which sample in which step. See `draw` for the others."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.draw import COLORS

__all__ = ["epoch"]

GAP = 0.5  # between steps


def epoch(drawn: Sequence[Sequence[int]], batch: int) -> Figure:
    """Ranks are rows; what they draw stands in order, cut into steps of `batch` samples.

    The cells of one step, over all ranks, are the global batch: they have one colour. A sample that
    was drawn before, by an earlier step or a smaller rank, is crossed out: it is a repetition.

    Args:
        drawn: of each rank, the numbers of its samples, in order.
        batch: samples that a rank takes in a step.
    """
    longest = max(len(own) for own in drawn)
    size = (0.36 * longest + 1.1, 0.28 * len(drawn) + 0.5)
    figure, axes = plt.subplots(figsize=size, facecolor="none", layout="constrained")
    seen: set[int] = set()
    for place in range(longest):
        for rank, own in enumerate(drawn):
            if place < len(own):
                _cell(axes, place, rank, own[place], batch, own[place] in seen)
                seen.add(own[place])
    edges = [(at, min(at + batch, longest)) for at in range(0, longest, batch)]
    middles = [(left + right) / 2 + GAP * step for step, (left, right) in enumerate(edges)]
    axes.set_xticks(middles, [f"step {step + 1}" for step in range(len(edges))])
    axes.set_yticks(*zip(*((r + 0.46, f"rank {r}") for r in range(len(drawn))), strict=True))
    axes.set_xlim(-0.1, longest + GAP * (len(edges) - 1) + 0.1)
    axes.set_ylim(len(drawn) + 0.05, -0.05)
    axes.xaxis.tick_top()
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return figure


def _cell(axes: Axes, place: int, rank: int, sample: int, batch: int, again: bool) -> None:
    step = place // batch
    x = place + GAP * step
    color = COLORS[step % 6]
    axes.add_patch(Rectangle((x, rank), 0.94, 0.92, facecolor=color, alpha=0.4, linewidth=0))
    axes.text(x + 0.47, rank + 0.48, str(sample), ha="center", va="center", fontsize=8)
    if again:
        axes.plot([x, x + 0.94], [rank + 0.92, rank], color=COLORS[1], linewidth=1.6)
