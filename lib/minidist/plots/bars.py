"""Pictures of amounts: bars stacked of parts, a level over time, a batch cut into shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots.draw import COLORS

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")  # parts differ without colour too


def stacked(
    panels: Sequence[Mapping[str, Mapping[str, float]]],
    *,
    y_label: str,
    limit: tuple[str, float] | None = None,
) -> Figure:
    """Bars stacked of named parts, in panels side by side that each have a scale of their own.

    Args:
        panels: of each panel: bar → part → amount. All bars may lack parts.
        y_label: what is counted, with its unit.
        limit: name and height of a line across all panels, such as the memory of a GPU.
    """
    parts = list(dict.fromkeys(part for bars in panels for bar in bars.values() for part in bar))
    figure, grid = plt.subplots(
        1,
        len(panels),
        figsize=(7.2, 3.6),
        squeeze=False,
        facecolor="none",
        layout="constrained",
        width_ratios=[len(bars) for bars in panels],
    )
    for axes, bars in zip(grid.flat, panels, strict=True):
        bottom = [0.0] * len(bars)
        for number, part in enumerate(parts):
            heights = [bar.get(part, 0.0) for bar in bars.values()]
            axes.bar(
                list(bars),
                heights,
                0.62,
                bottom,
                label=part,
                facecolor=COLORS[number],
                edgecolor="black",
                hatch=HATCHES[number],
                linewidth=0.5,
                alpha=0.8,
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        if limit:
            axes.axhline(limit[1], color="black", linestyle="--", linewidth=1.2, label=limit[0])
        axes.set_facecolor("none")
        axes.tick_params(axis="x", labelsize=8, length=0)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel(y_label)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def level(
    curve: Sequence[tuple[float, float]],
    marks: Mapping[str, float],
    *,
    x_label: str,
    y_label: str,
) -> Figure:
    """An amount that goes up and down in jumps, with named heights marked by dashed lines."""
    figure, axes = plt.subplots(figsize=(7.2, 3.4), facecolor="none", layout="constrained")
    when, amount = zip(*curve, strict=True)
    axes.fill_between(when, amount, step="post", color=COLORS[0], alpha=0.35, linewidth=0)
    axes.step(when, amount, where="post", color=COLORS[0], linewidth=1)
    for number, (name, height) in enumerate(marks.items(), 1):
        axes.axhline(height, color=COLORS[number], linestyle="--", linewidth=1.4, label=name)
    axes.set_facecolor("none")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def shares(parts: Sequence[Sequence[object]], local: int) -> Figure:
    """A batch cut into a part for each rank, and the ranks into nodes of `local`.

    Args:
        parts: of each rank, the names of its samples.
        local: ranks in a node.
    """
    figure, axes = plt.subplots(figsize=(7.2, 1.8), facecolor="none", layout="constrained")
    edge = begin = 0.0
    for rank, part in enumerate(parts):
        if rank % local == 0:
            edge = begin = edge + 0.7 * (rank > 0)  # nodes stand further apart than ranks
        for place, sample in enumerate(part):
            at = (edge + place, 0)
            axes.add_patch(Rectangle(at, 1, 1, fc=COLORS[rank % local % 7], alpha=0.55, ec="k"))
            axes.text(at[0] + 0.5, 0.5, str(sample), ha="center", va="center", fontsize=7)
        name = f"rank {rank}\nlocal {rank % local}"
        axes.text(edge + len(part) / 2, -0.3, name, ha="center", va="top", fontsize=8)
        edge += len(part)
        if rank % local == local - 1 or rank == len(parts) - 1:
            node = f"node {rank // local}"
            axes.text((begin + edge) / 2, 1.3, node, ha="center", fontsize=9)
        edge += 0.7
    axes.set_xlim(-0.3, edge - 0.4)
    axes.set_ylim(-1.5, 2.0)
    axes.set_axis_off()
    return figure
