"""Training runs whose replicas part: the loss beside the distance between the ranks' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY


class Run(NamedTuple):
    """Of each step, the mean loss and how far apart the ranks' weights are after it."""

    loss: Sequence[float]
    apart: Sequence[float]


LOOKS = ("-", "--", ":")


def drift(runs: Mapping[str, Run], change: int) -> Figure:
    """Two panels over the same steps, a line for each run.

    Args:
        runs: name → what was measured.
        change: the step at which something was changed on one rank.
    """
    figure, grid = style.subplots(2, 1, size=(3.4, 3.9), sharex=True)
    above, below = grid[:, 0]
    for number, (name, run) in enumerate(runs.items()):
        look = {"color": COLORS[number], "linestyle": LOOKS[number], "linewidth": 1.8}
        above.plot(run.loss, **look)
        below.plot(run.apart, **look)
        end = len(run.apart) - 1, run.apart[-1]
        below.annotate(name, end, (4, 0), textcoords="offset points", fontsize=8, va="center")
        below.set_xlim(-0.5, 1.27 * end[0])  # room for the names
    for axes, title in ((above, "loss, all runs"), (below, "largest difference of a weight")):
        axes.set_title(title, fontsize=9, loc="left")
        axes.axvline(change, color=GREY, linewidth=1, linestyle=":")
        axes.grid(alpha=0.3)
        style.chart(axes, labelsize=8)
    below.set_xlabel("step", fontsize=9)
    return figure
