"""Pictures of what others measured on GPUs; each takes a record of `course.pages.published`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course.chapters.gpus.traces import DARK, WIDE
from course.timing.fits import Line, TwoLines, bus_bandwidth, errors, through_ends, two_lines
from minidist.plots import style
from minidist.plots.cells import bar, cells, ending, lanes
from minidist.plots.curves import Curve, Look, byte_ticks, curves
from minidist.plots.style import COLORS, GREY, MARKERS, PHASE, TITLE

BETWEEN = 256 * 2**10, 32 * 2**20  # sizes at which one line is off by about 2
MARK = 96 * 2**20  # the size of most of DDP's buckets in the small job


def all_reduce_curves(
    curves: Sequence[Mapping[str, Any]],
    *,
    bandwidth: bool = False,
    both: bool = False,
) -> Figure:
    """All-reduces measured on GPUs over their size, beside α + βn; below, the error of the line.

    `curves`: at most four, as `course.pages.published.curve` reads them. Markers are measured. The
    dashed line goes through both ends; where it is shaded, one line is off by about 2.
    `bandwidth`: show bus bandwidth, not time; `both`: also two fitted lines (dotted).
    """
    figure, grid = style.subplots(2, 1, size=(WIDE, 4.2), sharex=True, height_ratios=(1.7, 1))
    above, below = grid[:, 0]
    lines = (("one line, α + βn", "--"), ("two lines", ":"))[: 1 + both]
    for number, curve in enumerate(curves):
        rows, color, sizes = curve["rows"], COLORS[number], [size for size, _ in curve["rows"]]
        values = _shown(rows, curve["ranks"], bandwidth)
        (line,) = above.plot(sizes, values, label=curve["name"], lw=0)
        line.set(marker=MARKERS[number], ms=3.2, mfc="none", color=color)
        models: list[Line | TwoLines] = [through_ends(rows), two_lines(rows)]
        for model, (_, dashes) in zip(models, lines, strict=False):
            look: Look = {"ls": dashes, "lw": 1.1, "color": color}
            said = [(size, model(size)) for size in sizes]
            above.plot(sizes, _shown(said, curve["ranks"], bandwidth), **look)
            below.plot(sizes, [1 + error for error in errors(model, rows)], **look)
    above.set_yscale("linear" if bandwidth else "log")
    below.axhline(1, color=GREY, lw=0.8)
    below.set(ylim=(0.2, 1.4), yticks=[0.5, 1.0])
    quantity = "bus bandwidth, GB/s" if bandwidth else "milliseconds"
    for axes, title in ((above, quantity), (below, "predicted / measured")):
        axes.set_xscale("log", base=2)
        axes.axvspan(*BETWEEN, color=GREY, alpha=0.12, lw=0)
        axes.axvline(MARK, color=DARK, lw=0.9, ls=(0, (1, 2)))
        style.chart(axes, title=title, grid=0.25)
    ticks = byte_ticks(5, 10, 15, 20, 25, 30)
    below.set_xticks(list(ticks), list(ticks.values()))
    below.set_xlabel("bytes in the tensor", fontsize=TITLE)
    style.on_top(above, MARK, "96 MiB")
    for name, dashes in lines:
        above.plot([], [], color=DARK, ls=dashes, lw=1.1, label=name)
    style.legend_below(figure, 1 if len(curves) > 2 else 2)
    return figure


def _shown(rows: Sequence[tuple[float, float]], ranks: int, bandwidth: bool) -> list[float]:
    """Bus bandwidth, or milliseconds; `rows`: bytes, and microseconds."""
    return [bus_bandwidth(n, took, ranks) if bandwidth else took / 1e3 for n, took in rows]


CAUSES = {
    "GPU": COLORS[1],
    "network": COLORS[0],
    "dependency": COLORS[4],
    "unplanned maintenance": COLORS[3],
    "host": COLORS[2],
    "unknown": GREY,
}


def failures(record: Mapping[str, Any]) -> Figure:
    """The record `failures`, the nine most frequent causes by name; colours say where they lie."""
    most = 9
    rows = sorted(record["rows"], key=lambda row: -row[2])
    rest = sum(count for *_, count in rows[most:])
    shown = [*rows[:most], [f"{len(rows) - most} others", "", rest]]
    whole = sum(count for *_, count in rows)
    bars = {}
    for cause, category, count in shown:
        look = {"facecolor": CAUSES.get(category, GREY), "alpha": 0.75 if category else 0.4}
        share = f"{count}   {100 * count / whole:.0f}%"
        bars[cause] = [bar(look | {"linewidth": 0}, count), ending(share)]
    figure, axes = style.single(size=(WIDE, 0.24 * len(shown) + 0.75))
    cells(axes, bars, tall=0.72, margin=0)
    axes.spines["left"].set_visible(True)
    used = dict.fromkeys(category for _, category, _ in shown if category)
    style.legend_below(figure, 3, {name: {"fc": CAUSES[name], "alpha": 0.75} for name in used})
    return figure


def kernel_waits(record: Mapping[str, Any], collective: str, mebibytes: float) -> Figure:
    """The record `fsdp_waiting`: what of a collective's kernel is transfer, and what is waiting."""
    mine = [row for row in record["kernels"] if row[1] == collective and round(row[2]) == mebibytes]
    lasts = {f"rank {row[0]}": row[4] / 1e3 for row in mine}
    transfer = min(lasts.values())
    looks: dict[str, Look] = {
        "waiting for the others": {"facecolor": GREY, "alpha": 0.45, "hatch": "///"},
        "transfer": {"facecolor": PHASE["bucket"], "alpha": 0.85, "linewidth": 0},
    }
    bars = {}
    for name, long in lasts.items():
        pieces = zip(looks.values(), (long - transfer, transfer), strict=True)
        bars[name] = [*(bar(*each) for each in pieces), ending(f"{long:.0f}")]
    figure = lanes({"": bars}, (WIDE, 2.3), x_label="milliseconds per call, the mean", numbers=True)
    style.legend_below(figure, 2, looks)
    return figure


def bucket_sweep(record: Mapping[str, Any]) -> Figure:
    """The record `bucket_sweep`: backward's time over the size of buckets, in three ways.

    Dashed: what the rule of buckets predicts if the last to leave is full.
    """
    size, ddp, overlapped, at_the_end = np.array(record["rows"]).T
    ways = {"no overlap": (at_the_end, 1), "overlapped": (overlapped, 0), "DDP itself": (ddp, 2)}
    lines = [Curve(name, size, took, color) for name, (took, color) in ways.items()]
    model = record["parameters"] * 4 / 2**20
    exposed = (at_the_end.mean() - ddp.mean()) * np.minimum(size / model, 1)
    lines.append(Curve("", size, ddp.mean() + exposed, 6, predicted=True))
    marks = {"the whole model": model}
    scales: Look = {"x_log": False, "y_log": False}
    panels = {"backward, milliseconds": lines}
    return curves(panels, x_label="size of a bucket, MiB", marks=marks, **scales)
