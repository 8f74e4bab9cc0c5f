"""Traces of steps on GPUs, lane by lane; each takes a record of `course.pages.published`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course.pages.published import named
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, LABEL, PHASE, TITLE

WIDE = 3.6  # inches
BAR = 0.76  # of a lane's height
DARK = "#444B54"


class Spans(NamedTuple):
    """What ran on a lane of a trace, in one colour: (start, end) of each piece, in milliseconds."""

    lane: int
    spans: Sequence[Sequence[float]]
    color: str


def draw_lanes(axes: Axes, names: Sequence[str], parts: Sequence[Spans]) -> None:
    """Lanes from top to bottom, as a trace viewer shows them; time runs to the right."""
    for lane, spans, color in parts:
        top, low = lane + (1 - BAR) / 2, lane + (1 + BAR) / 2
        corners = [((a, top), (a, low), (b, low), (b, top)) for a, b in spans]
        # The line keeps what is thinner than a pixel in sight.
        axes.add_collection(PolyCollection(corners, facecolor=color, edgecolor=color, lw=0.35))
    axes.set_ylim(len(names), 0)
    axes.set_yticks([lane + 0.5 for lane in range(len(names))], names)
    style.chart(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _window(axes: Axes, start: float, end: float, title: str) -> None:
    """Show these milliseconds; what is out of sight would only make the picture's file heavy."""
    for bars in [each for each in axes.collections if isinstance(each, PolyCollection)]:
        shapes = [np.asarray(path.vertices) for path in bars.get_paths()]
        seen = [each[:, 0].max() >= start and each[:, 0].min() <= end for each in shapes]
        bars.set_verts([each for each, inside in zip(shapes, seen, strict=True) if inside])
        rest = [each for each, inside in zip(shapes, seen, strict=True) if not inside]
        axes.add_collection(PolyCollection(rest, visible=False))
    axes.set_xlim(start, end)
    axes.set_title(title, fontsize=TITLE, loc="left")


def name_colors(figure: Figure, columns: int, colors: Mapping[str, str]) -> None:
    """A legend below the figure: name → colour."""
    style.legend_below(figure, columns, [Patch(color=c, label=name) for name, c in colors.items()])


def ddp_trace(record: Mapping[str, Any]) -> Figure:
    """The record `ddp_trace`: one step of ResNet-50 under DDP on two A100s, as rank 0 saw it.

    Panels are the whole step, the first three buckets, and the end of backward. The upper lane is
    the compute stream, by phase; the lower one NCCL's: broadcasts of buffers, then the buckets.
    """
    found = record["steps"][0]
    calls = named(found["nccl_columns"], found["nccl"])
    buckets = [call for call in calls if call["collective"] == "all_reduce"]
    broadcasts = [call for call in calls if call["collective"] == "broadcast"]
    parts = [Spans(0, spans, PHASE[phase]) for phase, spans in found["compute"].items()]
    parts.append(Spans(1, [_span(call) for call in buckets], PHASE["bucket"]))
    parts.append(Spans(1, [_span(call) for call in broadcasts], DARK))
    backward = found["compute"]["backward"]
    begins, ends = backward[0][0], found["backward_end_ms"]
    windows = {
        "one step": (0.0, found["step_ms"]),
        "backward begins: buckets 1, 2, 3": (begins - 1, begins + 23),
        "backward ends: bucket 5": (ends - 21, found["step_ms"] + 0.5),
    }
    figure, grid = style.subplots(3, 1, size=(WIDE, 4.3), height_ratios=(1, 1.25, 1.25))
    for number, (axes, (title, window)) in enumerate(zip(grid[:, 0], windows.items(), strict=True)):
        draw_lanes(axes, ["compute", "NCCL"], parts)
        _window(axes, *window, title)
        for index, call in enumerate(buckets, 1):
            start, end = _span(call)
            if not window[0] <= start <= window[1]:
                continue
            text = f"{index}" if number == 0 else f"{index}\n{4e-6 * call['elements']:.1f} MB"
            axes.text((start + end) / 2, 2.05, text, fontsize=LABEL, ha="center", va="top")
        axes.set_ylim(2.55 if number == 0 else 3.15, 0)
    for axes, window in zip(grid[1:, 0], list(windows.values())[1:], strict=True):
        for each in (grid[0, 0], axes):  # what is enlarged
            each.axvspan(*window, color=GREY, alpha=0.1, lw=0)
    _nothing_exposed(grid[2, 0], found["last_all_reduce_end_ms"], ends)
    grid[2, 0].set_xlabel("milliseconds since the step began", fontsize=TITLE)
    names = {name: PHASE[name] for name in ("forward", "backward", "optimizer")}
    name_colors(figure, 3, names | {"all-reduce": PHASE["bucket"], "broadcast": DARK})
    return figure


def _nothing_exposed(axes: Axes, done: float, ends: float) -> None:
    axes.plot([done, done], [1, 2], color=DARK, lw=1)
    axes.plot([ends, ends], [0, 2], color=DARK, lw=1)
    axes.annotate("", (ends, 1.5), (done, 1.5), arrowprops={"arrowstyle": "<->", "color": DARK})
    text = f"ended {ends - done:.0f} ms\nbefore backward"
    axes.text((ends + done) / 2, 2.05, text, fontsize=LABEL, ha="center", va="top")


def _span(call: Mapping[str, Any]) -> tuple[float, float]:
    return call["start_ms"], call["start_ms"] + call["duration_ms"]


def no_overlap_trace(record: Mapping[str, Any]) -> Figure:
    """The record `no_overlap_trace`: each parameter is all-reduced by itself, after backward.

    The uppermost panel is a whole step. The other two show 5 ms of the exchange in two steps: in
    the second, kernels last longer and the pauses are gone, because the kernels wait instead.
    """
    steps = [step for step in record["steps"] if "compute" in step]
    figure, grid = style.subplots(3, 1, size=(WIDE, 3.7))
    for axes, step in zip(grid[:, 0], (steps[0], *steps), strict=True):
        calls = [(at, at + long / 1e3) for at, long in step["all_reduce_start_ms_and_us"]]
        parts = [Spans(0, step["compute"], GREY), Spans(1, calls, PHASE["bucket"])]
        draw_lanes(axes, ["compute", "NCCL"], parts)
        if axes is grid[0, 0]:
            name = f"step {step['step']}: {step['all_reduces']} all-reduces after backward"
            _window(axes, 0, step["step_ms"], name)
        else:
            busy, idle = step["all_reduce_busy_ms"], step["idle_between_ms"]
            name = f"step {step['step']}, enlarged; kernels {busy:.0f} ms, pauses {idle:.0f} ms"
            start = step["first_all_reduce_ms"]
            _window(axes, start - 1, start + 4, name)
    grid[2, 0].set_xlabel("milliseconds since the step began", fontsize=TITLE)
    name_colors(figure, 2, {"compute": GREY, "all-reduce": PHASE["bucket"]})
    return figure


PASS = {"(F)": ("forward", COLORS[5]), "(B)": ("backward", COLORS[0])}
PASS |= {"(W)": ("weights", "#7A9CC6")}
MOVES = {"dispatch": COLORS[4], "combine": COLORS[1], "notify": GREY, "layout": GREY}


def dualpipe_trace(record: Mapping[str, Any]) -> Figure:
    """The record `dualpipe_trace`: all-to-all of a mixture of experts, hidden behind compute.

    Above a forward and a backward chunk of four layers each; below one of the layers, enlarged.
    """
    parts = []
    for which, (_, color) in PASS.items():
        spans = [(start, end) for name, start, end in record["compute"] if name.endswith(which)]
        parts.append(Spans(0, spans, color))
    for which, color in MOVES.items():
        sent = [(at, at + long) for kind, at, long in record["communication"] if kind == which]
        parts.append(Spans(1, sent, color))
    figure, grid = style.subplots(2, 1, size=(WIDE, 3.1), height_ratios=(1, 1.3))
    for axes, window in zip(grid[:, 0], ((0, record["span_ms"]), (30, 61.2)), strict=True):
        draw_lanes(axes, ["compute", "all-to-all"], parts)
        _window(axes, *window, "four layers" if axes is grid[0, 0] else "one of them")
    for name, start, end in record["compute"]:
        if start >= 30 and end <= 61.5:
            style.write(grid[1, 0], (start + end) / 2, 0.5, name[:-3], LABEL)
    grid[1, 0].set_xlabel("milliseconds", fontsize=TITLE)
    names = dict(PASS.values())
    name_colors(figure, 3, names | {"dispatch": COLORS[4], "combine": COLORS[1], "waiting": GREY})
    return figure
