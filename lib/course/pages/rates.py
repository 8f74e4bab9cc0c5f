"""The page "Rates": what GPUs were seen to reach, beside the formula of the clock."""

from contextlib import redirect_stdout
from io import StringIO
from statistics import median
from typing import Any

from IPython.display import Markdown
from matplotlib.figure import Figure

from course.pages import results
from course.pages.predicted import GPUS, links, summary, throughput
from course.pages.price import PUBLISHED, ask
from course.pages.recorded import recorded
from course.pages.table import folded, table
from minidist.planner.hardware import A100, ACCELERATORS, H100, H200, Accelerator
from minidist.planner.jobs import LARGE, MEDIUM, SMALL, sized
from minidist.planner.sizes import Sizes
from minidist.plots.curves import Curve, curves, grouped_bars

JOBS = {"small": SMALL, "medium": MEDIUM, "large": LARGE}
WAYS = ["autocast", "autocast, compiled", "bf16", "bf16, compiled"]
FITTED = {
    "A100": "209 published runs",
    "H100": "the same",
    "H200": "our own record",
    "B200": "U to 9 published runs",
    "GB200": "U to 19 published runs",
}


def of_a_step() -> list[list[Any]]:
    """Amounts and rates of the small job on 16 GPUs, 4,096 tokens on each; last, milliseconds."""
    job, rate = sized("small", 4096), H100.rate(SMALL.width)
    sent = 2 * 15 / 16 * 4 * job.parameters
    rows: list[tuple[str, float, float, str]] = [
        ("backward, matrices", 2 * (job.operations - job.attention) / 1e12, rate / 1e12, "TFLOP"),
        ("backward, attention", 2 * job.attention / 1e12, H100.attention * rate / 1e12, "TFLOP"),
        ("all-reduce of gradients, per node", sent / 1e9, H100.node_network / 1e9, "GB"),
    ]
    return [
        [name, f"{amount:.3g} {unit}", f"{per_second:.0f} {unit}/s", 1e3 * amount / per_second]
        for name, amount, per_second, unit in rows
    ]


def constants() -> Markdown:
    """A table of each GPU's constants, and what they were fitted to."""
    head = ["GPU", "U", "half width h", "attention a", "fitted to"]
    rows = [
        [name, gpu.utilization, gpu.half_width, gpu.attention, FITTED.get(name, "nothing: assumed")]
        for name, gpu in ACCELERATORS.items()
    ]
    return table(head, rows)


def all_reduce_off(gpus: int) -> float:
    """Line rate over published seconds of the small job's all-reduce."""
    return ask("all_reduce", gpus=gpus) / ask("all_reduce", gpus=gpus, tariff="published")


def errors() -> list[list[str]]:
    """What is predicted, what measured, and how far they are apart."""
    found = summary()
    with redirect_stdout(StringIO()):
        layers = of_layers()
    medium = [ratio for ratios in links().values() for ratio in ratios]
    large = [all_reduce_off(gpus) for gpus in PUBLISHED]
    wrong = f"{found['error']:.1%} off in the median, one in ten over {found['error_p90']:.0%}"
    faster = f"{layers['faster_large']:.1f} to {layers['faster_small']:.1f}"
    between = (f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in (large, medium))
    return [
        ["steps of MPT", "the 209 runs", wrong],
        ["a layer on one H100", "our own run", faster],
        ["all-reduce of the small job's gradients", "published, 8 to 64 H100s", next(between)],
        ["all-reduce of 1 to 32 MiB", "the same", next(between)],
    ]


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
        lines.append(Curve("", widths, formula, color, predicted=True))
    ticks: dict[float, str] = {w: f"{w:,}" for w in (768, 2048, 4096, 8192)}
    panels = {"% of the peak": lines}
    return curves(panels, x_label="width of the model", x_ticks=ticks, y_log=False, y_zero=True)


def layers_alone(record: str = "gpu_rates") -> dict[tuple[int, str], dict[str, Any]]:
    """(width, way) → what a layer of such a width reached on one GPU, with 8,192 tokens."""
    return {
        (row["width"], row["way"]): row
        for row in recorded(record)["rows"]
        if row.get("tflops") and row["tokens"] == 8192 and not row["checkpointed"]
    }


def layer_bars() -> Figure:
    """TFLOP/s of a layer of each job by the H100's clock, and as two GPUs reached it."""
    groups = {"the H100's clock": [clock(job) / 1e12 for job in JOBS.values()]}
    gpus = {"H100": layers_alone(), "H200": layers_alone("gpu_rates_h200")}
    for way in ("autocast", "bf16"):
        for gpu, found in gpus.items():
            groups[f"{gpu}, {way}"] = [found[job.width, way]["tflops"] for job in JOBS.values()]
    return grouped_bars(groups, [*JOBS], y_label="TFLOP/s of a layer")


def layers_beside() -> Markdown:
    """The same with compiled layers, folded; a dash where no time was left."""
    with redirect_stdout(StringIO()):  # the bars have said where and when
        found = [layers_alone(), layers_alone("gpu_rates_h200")]
    rows = []
    for name, job in JOBS.items():
        reached = [[each.get((job.width, way)) for each in found] for way in WAYS]
        rates = [[f"{r['tflops']:.0f}" if r else "–" for r in pair] for pair in reached]
        cells = ["\N{NO-BREAK SPACE}·\N{NO-BREAK SPACE}".join(pair) for pair in rates]
        rows.append([name, round(clock(job) / 1e12), *cells])
    head = ["TFLOP/s, H100 · H200", "by the H100's clock", *WAYS]
    return folded("All numbers (–: not timed)", table(head, rows))


def eight_bits() -> tuple[float, float]:
    """How many times as fast as in bf16 a layer's products are in fp8: alone, and with casts.

    Of the medium job on our H200, with one scale per tensor; casts as torch compiles them.
    """
    times = {"query": 2, "key": 2, "gate": 2, "down": 1}  # that a layer has each, or one as large
    rows = [row for row in recorded("gpu_experts")["rows"] if row.get("what") == "matrix"]
    bf16, products, cast = (
        sum(row["ms"][way][1] * times[row["matrix"]] for row in rows)
        for way in ("bf16", "fp8, products", "fp8")
    )
    return bf16 / products, bf16 / cast


def clock(job: Sizes) -> float:
    """FLOPs per second of a layer's matrices and its attention together, on an H100."""
    matrices = job.operations - job.head - job.attention
    slowed = matrices + job.attention / H100.attention
    return (matrices + job.attention) / slowed * H100.rate(job.width)


def of_layers() -> dict[str, float]:
    """What the page's sentences say of a layer alone, on either GPU, and in eight bits."""
    one, other = layers_alone(), layers_alone("gpu_rates_h200")
    found = {}
    for name, job in JOBS.items():
        rate = 1e12 * one[job.width, "autocast"]["tflops"]
        found[f"faster_{name}"] = rate / clock(job)
    for way in ("autocast", "bf16"):
        keys = [(job.width, way) for job in JOBS.values()]
        gains = [other[key]["tflops"] / one[key]["tflops"] - 1 for key in keys]
        found |= {f"h200_{way}_least": min(gains), f"h200_{way}_most": max(gains)}
    products, cast = eight_bits()
    return found | {
        "attention_small": one[SMALL.width, "autocast"]["attention"],
        "fp8_products": products,
        "fp8_cast": cast,
    }
