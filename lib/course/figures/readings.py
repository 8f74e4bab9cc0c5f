"""One schedule, read in three ways: drawn, run and priced."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from course.figures.link_lanes import fill_lanes
from course.figures.ring_circle import panel
from minidist.plots.style import GREY
from minidist.schedule.simulate import Replay


def readings(replay: Replay, rank: int = 1) -> Figure:
    """A schedule's messages, and below them the three things that one can make of them.

    They are a picture of the first step, one rank's part in all steps, and when its link is busy.
    """
    figure = plt.figure(figsize=(5.9, 3.6), facecolor="none", layout="constrained")
    axes = figure.subplot_mosaic("sss;drp", width_ratios=[1.5, 1, 1.1], height_ratios=[0.4, 1])
    first = [event for event in replay.events if event.step == 0]
    said = [f"{e.src} → {e.dst}: chunk {e.chunk}" for e in first]
    top = axes["s"]
    top.set_axis_off()
    _write(top, 0.5, 0.95, "the schedule")
    _write(top, 0.5, 0.64, "step 1:   " + ",   ".join(said))
    _write(top, 0.5, 0.38, f"steps 2 to {replay.steps}:   …")
    for start, end in ((0.4, 0.2), (0.53, 0.53), (0.66, 0.84)):
        down = FancyArrowPatch((start, 0.2), (end, -0.12), arrowstyle="-|>", color=GREY)
        down.set(transform=top.transAxes, clip_on=False, mutation_scale=10)
        top.add_patch(down)
    panel(axes["d"], replay, [0], "drawn: step 1")
    _own_lines(axes["r"], replay, rank)
    fill_lanes(axes["p"], replay, rank, f"priced: rank {rank}'s link")
    axes["p"].set_xlabel("time (1 = a whole tensor)", fontsize=8)
    axes["p"].set_xlim(0, 1.6)
    return figure


def _own_lines(axes: Axes, replay: Replay, rank: int) -> None:
    axes.set_axis_off()
    axes.set_title(f"run: rank {rank}'s part", fontsize=9)
    sends = {event.step: event.chunk for event in replay.events if event.src == rank}
    for event in (event for event in replay.events if event.dst == rank):
        then = "add" if event.reduce else "keep"
        line = f"{event.step + 1}:  send {sends[event.step]},  {then} {event.chunk}"
        _write(axes, 0.5, 0.9 - 0.9 * event.step / replay.steps, line)


def _write(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, fontsize=8, ha="center", va="center", transform=axes.transAxes)
