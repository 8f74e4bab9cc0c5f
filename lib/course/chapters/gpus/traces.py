"""Traces of steps on GPUs, lane by lane; each takes a record of `course.pages.published`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from course.drawing.sketches import ink
from course.pages.published import named
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, LABEL, PHASE, TITLE

WIDE = 3.6  # inches
BAR = 0.76  # share of a lane's height
BINS = 96  # of a panel's width, in each of which a busy share is counted
DARK = "#444B54"
NEAR = {2: -2.5, 3: 2.5}  # milliseconds that set neighbors' numbers apart, by bucket

Pair = tuple[float, float]  # start and end, in milliseconds
Spans = tuple[int, Sequence[Sequence[float]], str]  # a lane, what ran on it as pairs, their colour


def draw_lanes(
    axes: Axes, names: Sequence[str], parts: Sequence[Spans], window: Pair, title: str
) -> None:
    """Draw the spans in a window of time, in lanes from top to bottom, as a trace viewer does."""
    begin, end = window
    for lane, spans, color in parts:
        top, low = lane + (1 - BAR) / 2, lane + (1 + BAR) / 2
        seen = [(a, b) for a, b in spans if b >= begin and a <= end]  # more makes the file heavy
        corners = [((a, top), (a, low), (b, low), (b, top)) for a, b in seen]
        # The line keeps what is thinner than a pixel in sight.
        axes.add_collection(PolyCollection(corners, facecolor=color, edgecolor=color, lw=0.35))
    axes.set(xlim=window, ylim=(len(names), 0))
    axes.set_yticks([lane + 0.5 for lane in range(len(names))], names)
    axes.spines["left"].set_visible(False)
    style.chart(axes, title=title, bare="y")


def draw_busy(axes: Axes, parts: Sequence[Spans], window: Pair) -> None:
    """Fill each part's lane as high as the share of time in which it runs, on those before it."""
    edges, below = np.linspace(*window, BINS + 1), defaultdict[int, Any](lambda: np.zeros(BINS))
    for lane, spans, color in parts:
        until = sum(
            np.clip(edges, start, end) - start for start, end in spans
        )  # time run till then
        above = below[lane] + np.diff(until) / np.diff(edges)
        low = lane + (1 + BAR) / 2
        bottom, top = (low - BAR * share for share in (below[lane], above))
        axes.stairs(top, edges, baseline=bottom, fill=True, color=color)
        below[lane] = above
    for lane in below:
        axes.axhspan(lane + (1 - BAR) / 2, lane + (1 + BAR) / 2, color=GREY, alpha=0.16, lw=0)


def ddp_trace(record: Mapping[str, Any]) -> Figure:
    """The record `ddp_trace`: one step of ResNet-50 under DDP on two A100s, as rank 0 saw it.

    Panels are the whole step, the first three buckets, and the end of backward. The upper lane is
    the compute stream's busy share, by phase; the lower one NCCL's: broadcasts of buffers, then
    the buckets. What begins after the last bucket has left are copies out of the buckets.
    """
    found = record["steps"][0]
    calls = named(found["nccl_columns"], found["nccl"])
    buckets = [call for call in calls if call["collective"] == "all_reduce"]
    compute, left = dict(found["compute"]), buckets[-1]["launched_ms"]
    copies = [span for span in compute["backward"] if span[0] > left]
    compute["backward"] = [span for span in compute["backward"] if span[0] <= left]
    colors = {phase: PHASE[phase] for phase in compute} | {"copy": COLORS[3]}
    busy = [(0, spans, colors[phase]) for phase, spans in (compute | {"copy": copies}).items()]
    parts = [(1, [_span(call) for call in buckets], PHASE["bucket"])]
    parts.append((1, [_span(call) for call in calls if call["collective"] == "broadcast"], DARK))
    begins, ends = found["compute"]["backward"][0][0], found["backward_end_ms"]
    windows = {
        "one step": (0.0, found["step_ms"]),
        "backward begins: buckets 1, 2, 3": (begins - 1, begins + 23),
        "backward ends: bucket 5": (ends - 21, found["step_ms"] + 0.5),
    }
    figure, grid = style.subplots(3, 1, size=(WIDE, 4.3), height_ratios=(1, 1.25, 1.25))
    whole = grid[0, 0]
    for axes, (title, window) in zip(grid[:, 0], windows.items(), strict=True):
        draw_lanes(axes, ["compute", "NCCL"], parts, window, title)
        draw_busy(axes, busy, window)
        for index, call in enumerate(buckets, 1):
            start, end = _span(call)
            if window[0] <= start <= window[1]:
                size = "" if axes is whole else f"\n{4e-6 * call['elements']:.1f} MB"
                apart = NEAR.get(index, 0.0) if axes is whole else 0.0
                _below(axes, (start + end) / 2 + apart, f"{index}{size}")
        axes.set_ylim(2.55 if axes is whole else 3.15, 0)
        for each in () if axes is whole else (whole, axes):  # what is enlarged
            each.axvspan(*window, color=GREY, alpha=0.1, lw=0)
    done = found["last_all_reduce_end_ms"]  # nothing is exposed
    axes.plot([done, done], [1, 2], color=DARK, lw=1)
    axes.plot([ends, ends], [0, 2], color=DARK, lw=1)
    axes.annotate("", (ends, 1.5), (done, 1.5), arrowprops={"arrowstyle": "<->", "color": DARK})
    _below(axes, (ends + done) / 2, f"ended {ends - done:.0f} ms\nbefore backward")
    axes.set_xlabel("milliseconds since the step began", fontsize=TITLE)
    style.legend_below(figure, 3, colors | {"all-reduce": PHASE["bucket"], "broadcast": DARK})
    return figure


def _below(axes: Axes, x: float, text: str) -> None:
    axes.text(x, 2.05, text, fontsize=LABEL, ha="center", va="top")


def _span(call: Mapping[str, Any]) -> Pair:
    return call["start_ms"], call["start_ms"] + call["duration_ms"]


def fsdp_traces(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A step of FSDP on a GPU that ranks share: rows of the record `gpu_suites`, one a panel.

    Lanes are kernels, by the phase in which the host launched them, and the copies by which
    messages leave the GPU and arrive.
    """
    lanes = {"forward": 0, "backward": 0, "update": 0, "to host": 1, "from host": 2}
    colors = [PHASE["forward"], PHASE["backward"], PHASE["optimizer"], COLORS[4], COLORS[1]]
    shown = dict(zip(lanes, colors, strict=True))
    figure, grid = style.subplots(len(rows), 1, size=(WIDE, 1.7 * len(rows)))
    for axes, row in zip(grid[:, 0], rows, strict=True):
        parts = [(lanes[name], spans, shown[name]) for name, spans in row["gpu_ms"].items()]
        window = (0.0, row["host_ms"]["update"][1])
        draw_lanes(axes, ["compute", "to host", "from host"], parts, window, row["title"])
    axes.set_xlabel("milliseconds since the step began", fontsize=TITLE)
    style.legend_below(figure, 3, shown)
    return figure


PASS = {"(F)": ("forward", COLORS[5]), "(B)": ("backward", COLORS[0])}
PASS |= {"(W)": ("weights", "#7A9CC6")}
MOVES = {"dispatch": COLORS[4], "combine": COLORS[1], "notify": GREY, "layout": GREY}


def dualpipe_trace(record: Mapping[str, Any]) -> Figure:
    """The record `dualpipe_trace`: all-to-all of a mixture of experts, hidden behind compute.

    Above a forward and a backward chunk of four layers each; below one of the layers, enlarged.
    """
    parts: list[Spans] = []
    for which, (_, color) in PASS.items():
        spans = [(start, end) for name, start, end in record["compute"] if name.endswith(which)]
        parts.append((0, spans, color))
    for which, color in MOVES.items():
        sent = [(at, at + long) for kind, at, long in record["communication"] if kind == which]
        parts.append((1, sent, color))
    figure, grid = style.subplots(2, 1, size=(WIDE, 3.1), height_ratios=(1, 1.3))
    windows = {"four layers": (0, record["span_ms"]), "one of them": (30, 61.2)}
    for axes, (title, window) in zip(grid[:, 0], windows.items(), strict=True):
        draw_lanes(axes, ["compute", "all-to-all"], parts, window, title)
    for name, start, end in record["compute"]:
        if start >= 30 and end <= 61.5:
            color = ink(PASS[name[-3:]][1])
            style.write(axes, (start + end) / 2, 0.5, name[:-3], color=color)
    axes.set_xlabel("milliseconds", fontsize=TITLE)
    moves = {"dispatch": COLORS[4], "combine": COLORS[1], "waiting": GREY}
    style.legend_below(figure, 3, dict(PASS.values()) | moves)
    return figure
