"""What a rank holds at the peak of a step under each strategy, beside what it has."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.planner.planner import Forecast
from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH

LOOK = {name: (PART[name], PART_HATCH[name]) for name in PART} | {"unsharded": (GREY, "\\\\\\")}


def parts_at_peak(found: Forecast, unit: float = 1e9) -> dict[str, float]:
    """The parts that are there when most is: as backward begins, or as it ends."""
    held = found.memory
    parts = {"parameters": held["weights"], "optimizer state": held["optimizer"]}
    always = sum(parts.values())
    if found.peak <= always + held["unsharded"] + held["gradients"]:
        parts |= {"gradients": held["gradients"], "unsharded": held["unsharded"]}
    else:  # what else is there is DDP's buckets, or unsharded
        other = found.peak - always - held["activations"]
        replicated = held["unsharded"] == 0
        parts |= {"gradients" if replicated else "unsharded": other}
        parts |= {"activations": held["activations"]}
    return {name: nbytes / unit for name, nbytes in parts.items()}


def what_fits(forecasts: Mapping[str, Forecast], limit: float) -> Figure:
    """A bar for each strategy, stacked of parts, with a line at the memory of one GPU.

    Args:
        forecasts: name of a strategy → its forecast.
        limit: bytes that a GPU has.
    """
    figure, grid = style.subplots(size=(3.2, 0.4 * len(forecasts) + 1.3))
    axes: Axes = grid[0, 0]
    bars = [parts_at_peak(each) for each in forecasts.values()]
    longest = max(sum(parts.values()) for parts in bars)
    for row, parts in enumerate(bars):
        at = 0.0
        for part, amount in parts.items():
            color, hatch = LOOK[part]
            axes.barh(
                row, amount, 0.62, at, facecolor=color, hatch=hatch, label=part,
                edgecolor="black", linewidth=0.4, alpha=0.75,
            )  # fmt: skip
            at += amount
        axes.text(at + 0.02 * longest, row, f"{at:.0f}", fontsize=8, va="center")
    axes.axvline(limit / 1e9, color=GREY, linestyle="--", linewidth=1.3)
    name = f"{limit / 1e9:g} GB of one GPU"
    axes.text(limit / 1e9, -0.62, name, fontsize=8, ha="center", va="bottom")
    axes.set(xlim=(0, 1.12 * longest), ylim=(len(bars) - 0.5, -0.6))
    axes.set_yticks(range(len(bars)), list(forecasts))
    axes.set_xlabel("GB", fontsize=9)
    style.chart(axes, labelsize=8)
    style.legend_below(figure, 2)
    return figure
