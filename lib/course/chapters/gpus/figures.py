"""Pictures of what others measured on GPUs; each takes a record of `course.pages.published`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course.chapters.gpus.traces import DARK, WIDE
from course.drawing.boxes import Look, single, stacked
from course.drawing.charts import byte_ticks
from course.pages.published import named
from course.timing.fits import Line, TwoLines, bus_bandwidth, errors, through_ends, two_lines
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, HATCHES, LABEL, MARKERS, PART, PHASE, TITLE

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
    top: Look = {"transform": above.get_xaxis_transform(), "va": "bottom"}
    above.text(MARK, 1.0, "96 MiB", fontsize=LABEL, **top)
    handles: list[Any] = above.get_legend_handles_labels()[0]
    for name, dashes in lines:
        handles.append(Line2D([], [], color=DARK, ls=dashes, lw=1.1, label=name))
    style.legend_below(figure, 1 if len(curves) > 2 else 2, handles)
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
    figure, axes = single(size=(WIDE, 0.24 * (most + 1) + 0.75))
    shown = [*rows[:most], [f"{len(rows) - most} others", "", rest]]
    whole = sum(count for *_, count in rows)
    for place, (_, category, count) in enumerate(shown):
        color = CAUSES.get(category, GREY)
        axes.barh(place, count, 0.72, color=color, alpha=0.75 if category else 0.4)
        share = f"{count}   {100 * count / whole:.0f}%"
        axes.text(count + 2, place, share, fontsize=LABEL, va="center")
    axes.set_yticks(range(len(shown)), [cause for cause, *_ in shown])
    axes.set(xlim=(0, 1.25 * shown[0][2]), xticks=[], ylim=(len(shown) - 0.4, -0.6))
    axes.spines["bottom"].set_visible(False)
    style.chart(axes, bare="y")
    used = dict.fromkeys(category for _, category, _ in shown if category)
    style.legend_below(figure, 3, {name: CAUSES[name] for name in used})
    return figure


FORMULA = {
    "weights": (4, PART["parameters"]),
    "gradients": (4, PART["gradients"]),
    "Adam's moments": (8, PART["optimizer state"]),
    "buckets": (4, COLORS[4]),
    "the step's temporaries": (4, GREY),
}


def memory_by_formula(record: Mapping[str, Any]) -> Figure:
    """The record `ddp_fsdp_zero`: peaks in bytes per parameter, beside the formula.

    The first bar is the formula, part by part; under FSDP each is divided by 8 ranks, and there are
    no buckets. The others are measured; a model that ran out of memory has none.
    """
    titles = {"DDP": "ddp", "FSDP over 8 GPUs": "fsdp"}
    panels = {f"{name}: bytes per parameter at the peak": way for name, way in titles.items()}
    figure, drawn = stacked(panels, (WIDE, 4.1))
    rows = named(record["sizes_columns"], record["sizes_8_gpus"])
    for axes, strategy in drawn:
        bottom = 0.0
        for number, (part, (size, color)) in enumerate(FORMULA.items()):
            if part != "buckets" or strategy == "ddp":
                each = size / (8 if strategy == "fsdp" else 1)
                look: Look = {"color": color, "alpha": 0.8, "hatch": HATCHES[number]}
                axes.bar(0, each, 0.62, bottom, label=part, ec="black", lw=0.4, **look)
                bottom += each
        tops, names = [(bottom, f"{bottom:g}")], ["formula"]
        for row in (row for row in rows if row["strategy"] == strategy):
            each = row["peak_MiB"] * 2**20 / row["parameters"] if row["fits"] else 0
            if each:
                axes.bar(len(names), each, 0.62, color=DARK, alpha=0.55)
            tops.append((each, f"{each:.1f}" if each else "out of\nmemory"))
            size = row["parameters"] / 1e6
            names.append(f"{size / 1e3:.1f} B" if size >= 1e3 else f"{size:.0f} M")
        for place, (height, text) in enumerate(tops):
            axes.text(place, height, text, fontsize=LABEL, ha="center", va="bottom")
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
        style.chart(axes, bare="x")
    axes.set_xlabel("parameters of the model that was measured", fontsize=TITLE)
    parts, _ = figure.axes[0].get_legend_handles_labels()
    style.legend_below(figure, 2, [*parts, Patch(color=DARK, alpha=0.55, label="measured")])
    return figure


def kernel_waits(record: Mapping[str, Any], collective: str, mebibytes: float) -> Figure:
    """The record `fsdp_waiting`: what of a collective's kernel is transfer, and what is waiting."""
    mine = [row for row in record["kernels"] if row[1] == collective and round(row[2]) == mebibytes]
    lasts = {row[0]: row[4] / 1e3 for row in mine}
    transfer = min(lasts.values())
    figure, axes = single(size=(WIDE, 2.3))
    looks: dict[str, Look] = {
        "transfer": {"facecolor": PHASE["bucket"], "alpha": 0.85},
        "waiting for the others": {"facecolor": GREY, "alpha": 0.45, "hatch": "///"},
    }
    for rank, long in lasts.items():
        for start, end, look in zip((0, transfer), (transfer, long), looks.values(), strict=True):
            axes.barh(rank, end - start, 0.7, start, lw=0, **look)
        axes.text(long + 0.6, rank, f"{long:.0f}", fontsize=LABEL, va="center")
    axes.set_yticks(list(lasts), [f"rank {rank}" for rank in lasts])
    axes.set_ylim(len(lasts) - 0.4, -0.6)
    style.chart(axes, x_label="milliseconds per call, the mean", bare="y")
    style.legend_below(figure, 2, looks | {"transfer": PHASE["bucket"]})
    return figure


def bucket_sweep(record: Mapping[str, Any]) -> Figure:
    """The record `bucket_sweep`: backward's time over the size of buckets, in three ways."""
    size, ddp, overlapped, at_the_end = np.array(record["rows"]).T
    figure, axes = single(size=(WIDE, 2.5))
    lines = {  # times, color, and where its name stands
        "no overlap": (at_the_end, 1, (12, 582)),
        "overlapped": (overlapped, 0, (62, 516)),
        "DDP itself": (ddp, 2, (72, 462)),
    }
    for name, (took, number, at) in lines.items():
        axes.plot(size, took, color=COLORS[number], marker=MARKERS[number], ms=3, lw=1.1)
        axes.text(*at, name, fontsize=TITLE, color=COLORS[number], va="center")
    axes.axvline(record["parameters"] * 4 / 2**20, color=GREY, lw=0.9, ls=":")
    axes.text(96, 496, "the whole\nmodel", fontsize=LABEL, ha="right", va="center")
    axes.set_ylim(450, 595)
    style.chart(axes, title="backward, milliseconds", x_label="size of a bucket, MiB", grid=0.25)
    return figure
