"""The page "Rates": what GPUs were seen to reach, beside the formula of the clock."""

from statistics import median
from typing import Any

from matplotlib.figure import Figure

from course.pages import results
from course.pages.predicted import GPUS, throughput
from course.pages.recorded import recorded
from minidist.planner.hardware import A100, H100, H200, Accelerator
from minidist.planner.sizes import Sizes
from minidist.plots.curves import Curve, curves

WAYS = ["autocast", "autocast, compiled", "bf16", "bf16, compiled"]


def reached_by_width() -> dict[str, dict[int, list[float]]]:
    """GPU → width → shares of the peak with which the formula would give the times seen."""
    shares: dict[str, dict[int, list[float]]] = {"A100": {}, "H100": {}, "H200": {}}

    def seen(gpu: Accelerator, width: int, ratio: float) -> None:
        reached = gpu.rate(width) / gpu.flops / ratio
        shares[gpu.name[:4]].setdefault(width, []).append(reached)

    for run in throughput():
        busy = run.found.compute / run.found.overlapped
        seen(GPUS[run.gpu], run.width, run.ratio / busy)
    for width, predicted, measured in results.widths():
        seen(H200, width, measured / predicted)
    del shares["H200"][512]  # which waits for the host
    return shares


def utilization() -> Figure:
    """The share of the peak over the width, for three GPUs: seen, and by the formula."""
    lines = []
    shares = reached_by_width()
    for color, gpu in enumerate((A100, H100, H200)):
        points = shares[gpu.name[:4]]
        widths = sorted(points)
        medians = [100 * median(points[width]) for width in widths]
        formula = [100 * gpu.rate(width) / gpu.flops for width in widths]
        lines.append(Curve(gpu.name[:4], widths, medians, color))
        label = f"{gpu.name[:4]}, U = {gpu.utilization}"
        lines.append(Curve(label, widths, formula, color, predicted=True))
    ticks: dict[float, str] = {w: f"{w:,}" for w in (768, 2048, 4096, 8192)}
    panels = {"% of the peak": lines}
    return curves(panels, x_label="width of the model", x_ticks=ticks, y_log=False)


def layers_alone() -> dict[tuple[int, str], dict[str, Any]]:
    """(width, way) → what a layer of such a width reached on one H100, with 8,192 tokens."""
    return {
        (row["width"], row["way"]): row
        for row in recorded("gpu_rates")["rows"]
        if row.get("tflops") and row["tokens"] == 8192 and not row["checkpointed"]
    }


def clock(job: Sizes) -> float:
    """FLOPs per second of a layer's matrices and its attention together, on an H100."""
    matrices = job.operations - job.head - job.attention
    slowed = matrices + job.attention / H100.attention
    return (matrices + job.attention) / slowed * H100.rate(job.width)
