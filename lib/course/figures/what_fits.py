"""What a rank holds at the peak of a step under each strategy, beside what it has."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH

LOOK = {name: (PART[name], PART_HATCH[name]) for name in PART} | {"unsharded": (GREY, "\\\\\\")}


def what_fits(bars: Mapping[str, Mapping[str, float]], limit: float, unit: str = "GB") -> Figure:
    """A bar for each strategy, stacked of parts, with a line at the memory of one GPU.

    Args:
        bars: strategy → part, as `style.PART` names it, or "unsharded" → amount.
        limit: what a GPU has.
        unit: of the amounts.
    """
    figure, grid = style.subplots(size=(3.5, 0.42 * len(bars) + 1.0))
    axes: Axes = grid[0, 0]
    longest = max(sum(parts.values()) for parts in bars.values())
    for row, parts in enumerate(bars.values()):
        at = 0.0
        for part, amount in parts.items():
            color, hatch = LOOK[part]
            axes.barh(
                row, amount, 0.62, at, facecolor=color, hatch=hatch, label=part,
                edgecolor="black", linewidth=0.4, alpha=0.75,
            )  # fmt: skip
            at += amount
        fits = "" if at <= limit else ", too much"
        axes.text(at + 0.02 * longest, row, f"{at:.0f}{fits}", fontsize=8, va="center")
    axes.axvline(limit, color=GREY, linestyle="--", linewidth=1.3)
    axes.text(limit, -0.62, f"{limit:g} {unit} of one GPU", fontsize=8, ha="center", va="bottom")
    axes.set(xlim=(0, 1.35 * longest), ylim=(len(bars) - 0.5, -0.6))
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_xlabel(unit, fontsize=9)
    style.chart(axes, labelsize=8)
    style.legend_below(figure, 3)
    return figure
