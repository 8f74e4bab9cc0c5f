"""The roofline of a training step: what it reaches of a GPU's peak, over the tokens in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

LOOK: dict[str, dict[str, Any]] = {
    "computing": {"color": GREY, "ls": (0, (8, 2)), "lw": 1.3},
    "memory": {"color": COLORS[2], "ls": "-.", "lw": 1.3},
    "network": {"color": COLORS[1], "ls": "--", "lw": 1.3},
    "overlapped": {"color": COLORS[0], "ls": "-", "lw": 2.4},
    "in turns": {"color": COLORS[3], "ls": ":", "lw": 2.2},
}


def roofline(
    tokens: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    names: Mapping[str, tuple[float, float]],
) -> Figure:
    """Shares of the peak, on logarithmic axes.

    Args:
        tokens: of a rank in a step, the points of all lines.
        shares: "computing", "memory" and "network": what each alone would allow; "overlapped" and
            "in turns": what a step reaches.
        names: line → (tokens, share) where its name stands.
    """
    figure, grid = style.subplots(size=(3.3, 3.0))
    axes: Axes = grid[0, 0]
    for name, line in shares.items():
        axes.plot(tokens, line, **LOOK[name])
        axes.text(*names[name], name, fontsize=8, color=LOOK[name]["color"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens[::3], [f"{count:,}" for count in tokens[::3]])
    axes.set_ylim(min(min(line) for line in shares.values()) * 0.8, 1)
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.4, 1], ["2 %", "5 %", "10 %", "20 %", "40 %", "100 %"])
    axes.minorticks_off()
    axes.set_xlabel("tokens of a rank in a step", fontsize=9)
    axes.set_title("share of the GPU's peak", fontsize=9, loc="left")
    axes.grid(alpha=0.3)
    style.chart(axes, labelsize=8)
    return figure
