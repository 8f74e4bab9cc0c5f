"""The picture of units over time: when each computes, is gathered, and has its gradients sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.plots import style
from minidist.plots.style import PHASE
from minidist.profiler.spans import Span

LANES = {"forward": 0, "backward": 0, "all-gather": 1, "reduce-scatter": 2}  # kind → row
BAR = 0.8  # of a row's height


def unit_timeline(panels: Mapping[str, Iterable[Span]]) -> Figure:
    """A panel for each way to run a step, over the same time: one lane to compute, two to send.

    Args:
        panels: title → spans named "KIND UNIT", such as "all-gather 3", times in seconds.
    """
    size = 4.8, 1.5 * len(panels) + 0.45
    figure, grid = style.subplots(len(panels), 1, size=size, sharex=True)
    for axes, (title, spans) in zip(grid[:, 0], panels.items(), strict=True):
        _panel(axes, title, list(spans))
    grid[-1, 0].set_xlabel("milliseconds", fontsize=8)
    return figure


def _panel(axes: Axes, title: str, spans: list[Span]) -> None:
    for _, _, name, start, end in spans:
        kind, unit = name.rsplit(" ", 1)
        corner = 1e3 * start, LANES[kind] - BAR / 2
        box = Rectangle(corner, 1e3 * (end - start), BAR, edgecolor="black", lw=0.5, alpha=0.65)
        box.set_facecolor(PHASE[kind])
        axes.add_patch(box)
        middle = 5e2 * (start + end)
        axes.text(middle, LANES[kind], unit, ha="center", va="center_baseline", fontsize=8)
    for phase in ("forward", "backward"):
        own = [span for span in spans if span.name.startswith(phase)]
        middle = 5e2 * (own[0].start + own[-1].end)
        axes.text(middle, -0.55, phase, ha="center", va="bottom", fontsize=8)
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_yticks([0, 1, 2], ["compute", "all-gather", "reduce-scatter"])
    axes.set_ylim(2.6, -1.05)
    axes.set_title(title, fontsize=9, loc="left")
    style.chart(axes, labelsize=8)
    axes.tick_params(axis="y", length=0)
