"""One data-parallel training step, drawn as map, shuffle, reduce; ranks keep their places."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import PART, PART_HATCH, PHASE, RANK
from minidist.schedule.simulate import Replay

WIDE, GAP, HIGH = 1.0, 0.16, 0.34
ROWS = {  # of each row its top
    "shard": 0.0,
    "compute": 0.55,
    "own": 1.1,
    "summed": 2.2,
    "whole": 3.3,
    "weights": 3.85,
}


def step_as_reduce(scattered: Replay, gathered: Replay) -> Figure:
    """Samples, gradients in chunks, their sums, the whole sum and the weights, on each rank.

    Args:
        scattered: the reduce-scatter whose messages are the shuffle.
        gathered: the all-gather that follows.
    """
    figure, grid = style.subplots(size=(3.45, 4.3))
    axes: Axes = grid[0, 0]
    ranks = scattered.ranks
    for rank in range(ranks):
        left = rank * (WIDE + GAP)
        axes.text(left + WIDE / 2, -0.1, f"rank {rank}", ha="center", va="bottom", fontsize=8.5)
        style.outline(axes, left, ROWS["shard"], width=WIDE, height=HIGH, linewidth=0.8)
        _label(axes, left, "shard", f"shard {rank}")
        style.fill(axes, left, ROWS["compute"], PHASE["forward"], width=WIDE / 2, height=HIGH)
        right = left + WIDE / 2
        style.fill(axes, right, ROWS["compute"], PHASE["backward"], width=WIDE / 2, height=HIGH)
        _label(axes, left - WIDE / 4, "compute", "fwd")
        _label(axes, left + WIDE / 4, "compute", "bwd")
        _chunks(axes, left, "own", [(c, str(c)) for c in range(ranks)], ranks)
        _chunks(axes, left, "summed", [(rank, "Σ")], ranks)
        _chunks(axes, left, "whole", [(c, "Σ") for c in range(ranks)], ranks)
        style.fill(
            axes, left, ROWS["weights"], PART["parameters"], width=WIDE, height=HIGH, alpha=0.45
        )
        _label(axes, left, "weights", "weights")
    _lines(axes, scattered, "own", "summed")
    _lines(axes, gathered, "summed", "whole")
    names = {0.45: "map", 1.82: "shuffle", 2.37: "reduce", 2.92: "return", 4.02: "step"}
    for y, name in names.items():
        axes.text(-0.12, y, name, ha="right", va="center", fontsize=9, fontweight="bold")
    axes.set_xlim(-0.95, ranks * (WIDE + GAP) - GAP + 0.05)
    axes.set_ylim(4.25, -0.4)
    axes.set_axis_off()
    return figure


def _label(axes: Axes, left: float, row: str, text: str) -> None:
    style.write(axes, left + WIDE / 2, ROWS[row] + HIGH / 2 + 0.01, text)


def _middle(rank: int, chunk: int, ranks: int) -> float:
    return rank * (WIDE + GAP) + (chunk + 0.5) * WIDE / ranks


def _chunks(axes: Axes, left: float, row: str, own: list[tuple[int, str]], ranks: int) -> None:
    """Cells of a gradient: those that the rank holds, with a text in each."""
    width, color = WIDE / ranks, PART["gradients"]
    look: dict[str, Any] = {"facecolor": (color, 0.3), "edgecolor": (color, 0.35), "linewidth": 0}
    look["hatch"] = PART_HATCH["gradients"]
    style.outline(axes, left, ROWS[row], width=WIDE, height=HIGH, linewidth=0.5)
    for chunk, text in own:
        x = left + chunk * width
        axes.add_patch(Rectangle((x, ROWS[row]), width, HIGH, **look))
        style.outline(axes, x, ROWS[row], width=width, height=HIGH)
        style.write(axes, x + width / 2, ROWS[row] + HIGH / 2 + 0.01, text, fontsize=9)


def _lines(axes: Axes, replay: Replay, above: str, below: str) -> None:
    """Every message, in its sender's colour, and what stays where it is."""
    ranks = replay.ranks
    stays = [(rank, rank, rank) for rank in range(ranks)]
    for src, dst, chunk in [(e.src, e.dst, e.chunk) for e in replay.events] + stays:
        ends = _middle(src, chunk, ranks), _middle(dst, chunk, ranks)
        heights = ROWS[above] + HIGH, ROWS[below]
        axes.plot(ends, heights, color=RANK[src % 8], linewidth=1.1, alpha=0.85)
