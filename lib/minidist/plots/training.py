"""A training run, step by step: its loss, its speed, what it sent and what it held."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS

PANELS = {
    "loss": ("loss", 1.0),
    "tokens_per_second": ("thousand tokens per second", 1e3),
    "bytes_sent": ("MB sent by a rank", 1e6),
    "peak_memory": ("MB held by a rank", 1e6),
}


def training(records: Sequence[Mapping[str, Any]]) -> Figure:
    """The records of `python -m minidist.train`, a panel for each quantity that is known."""
    known = [key for key in PANELS if any(record.get(key) is not None for record in records)]
    figure, grid = style.subplots(len(known), 1, size=(6.4, 0.6 + 1.4 * len(known)), sharex=True)
    for number, (key, axes) in enumerate(zip(known, grid.flat, strict=True)):
        label, unit = PANELS[key]
        there = [record for record in records if record.get(key) is not None]
        steps, values = zip(*((each["step"], each[key] / unit) for each in there), strict=True)
        axes.plot(steps, values, color=COLORS[number], lw=1.4)
        axes.set_title(label, fontsize=9, loc="left")
        if key != "loss":
            axes.set_ylim(bottom=0)
        style.chart(axes, labelsize=8, grid=0.3)
    grid[-1, 0].set_xlabel("step")
    return figure
