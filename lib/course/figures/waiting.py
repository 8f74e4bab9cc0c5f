"""What `wait()` holds up: the host on a CPU, a stream of the GPU with NCCL. A sketch, no timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PHASE


class Bar(NamedTuple):
    """Something that a lane does from `start` to `end`."""

    text: str
    start: float
    end: float
    kind: str = "compute"


LOOKS = {"compute": PHASE["backward"], "communication": COLORS[4], "waits": GREY}
GLOO: Mapping[str, Sequence[Bar]] = {
    "program": (
        Bar("call", 0, 1.0),
        Bar("compute A", 1.0, 4.0),
        Bar("wait()", 4.0, 6.5, "waits"),
        Bar("use sum", 6.5, 8.5),
    ),
    "messages": (Bar("all_reduce", 1.0, 6.5, "communication"),),
}
NCCL: Mapping[str, Sequence[Bar]] = {
    "program": (
        Bar("call", 0, 1.0),
        Bar("queue A", 1.0, 2.3),
        Bar("wait()", 2.3, 3.3),
        Bar("queue use", 3.3, 4.8),
        Bar("goes on", 4.8, 8.5),
    ),
    "GPU stream": (
        Bar("compute A", 1.6, 4.6),
        Bar("stream waits", 4.6, 6.8, "waits"),
        Bar("use sum", 6.8, 8.5),
    ),
    "NCCL stream": (Bar("all_reduce", 1.3, 6.8, "communication"),),
}


def waiting() -> Figure:
    """Two panels over the same time: Gloo with two lanes, NCCL with three."""
    panels = {"Gloo, on CPUs": GLOO, "NCCL, on GPUs": NCCL}
    heights = [len(lanes) + 0.5 for lanes in panels.values()]
    figure, grid = style.subplots(2, 1, size=(4.8, 0.42 * sum(heights)), height_ratios=heights)
    for axes, (title, lanes) in zip(grid[:, 0], panels.items(), strict=True):
        _lanes(axes, lanes)
        axes.set_title(title, fontsize=9, loc="left")
    grid[1, 0].set_xlabel("time →", fontsize=8, loc="right")
    return figure


def _lanes(axes: Axes, lanes: Mapping[str, Sequence[Bar]]) -> None:
    for y, bars in enumerate(lanes.values()):
        for text, start, end, kind in bars:
            place: dict[str, Any] = {"width": end - start, "height": 0.8}
            if kind == "waits":
                style.outline(axes, start, y + 0.1, GREY, linewidth=1, **place)
                axes.patches[-1].set(linestyle="--")
            else:
                style.fill(axes, start, y + 0.1, LOOKS[kind], **place)
                style.outline(axes, start, y + 0.1, **place)
            style.write(axes, (start + end) / 2, y + 0.53, text)
    axes.set_xlim(0, 8.6)
    axes.set_xticks([])
    style.name_rows(axes, lanes)
    style.table(axes)
