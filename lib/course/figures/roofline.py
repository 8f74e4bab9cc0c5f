"""The roofline of a training step: what it reaches of a GPU's peak, over the tokens in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, DASHES, GREY

Line = Sequence[float]


def roofline(
    tokens: Sequence[int],
    roofs: Mapping[str, Line],
    overlapped: Line,
    sequential: Line,
    *,
    names: Mapping[str, tuple[float, float]],
) -> Figure:
    """Shares of the peak, on logarithmic axes.

    Args:
        tokens: of a rank in a step, the points of all lines.
        roofs: resource → the share that it alone would allow.
        overlapped: what a step reaches whose resources work at the same time.
        sequential: what it reaches if they take turns.
        names: a roof, "overlapped" or "in turns" → (tokens, share) where its name stands.
    """
    figure, grid = style.subplots(size=(3.5, 3.0))
    axes: Axes = grid[0, 0]
    lines = [*roofs.items(), ("overlapped", overlapped), ("in turns", sequential)]
    for number, (name, shares) in enumerate(lines):
        roof = name in roofs
        color = COLORS[(5, 4, 1)[number]] if roof else COLORS[0] if name == "overlapped" else GREY
        axes.plot(tokens, shares, color=color, lw=1.3 if roof else 2.2,
                  ls=DASHES[number] if roof else "-" if name == "overlapped" else (0, (1, 1)))  # fmt: skip
        axes.text(*names[name], name, fontsize=8, color=color)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens[::2], [f"{count:,}" for count in tokens[::2]])
    axes.set_ylim(min(sequential) * 0.8, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("tokens of a rank in a step", fontsize=9)
    axes.set_title("share of the GPU's peak", fontsize=9, loc="left")
    axes.grid(alpha=0.3)
    style.chart(axes, labelsize=8)
    return figure
