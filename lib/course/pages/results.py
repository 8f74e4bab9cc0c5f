"""What the page of recorded results shows of the benchmarks' records: bars, and folded tables."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from IPython.display import Markdown
from matplotlib.figure import Figure

from course.pages.price import ask
from course.pages.recorded import by_size, recorded, small_job, split_layers
from course.pages.table import folded, table
from minidist.planner.hardware import H200
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes
from minidist.plots.cells import stacked_bars
from minidist.plots.curves import grouped_bars
from minidist.plots.style import GREY

Row = Mapping[str, Any]
Ratios = Mapping[tuple[str, str, int], float]  # (record, way, ranks) → over PyTorch's own class
MAKERS = ["minidist", "minidist, native", "the lesson's"]
WAYS = {  # of each wrapper: its record, and its way by each maker
    "DDP": ("ddp", "minidist", "minidist, native", "overlapped"),
    "ZeRO-1": ("zero", "stage 1", "stage 1, native", "from_scratch, stage 1"),
    "ZeRO-2": ("zero", "stage 2", "stage 2, native", "from_scratch, stage 2"),
    "FSDP": ("fsdp", "fsdp", "fsdp, native", "from_scratch"),
}
PARTS: dict[str, Callable[[Row], str]] = {
    "tensor": lambda r: f"width among {r['ranks']}" + ", tokens between" * r["sequence_parallel"],
    "micro batch": lambda r: f"micro-batches of {512 * r['sequences']:,} tokens",
    "attention": lambda r: f"attention, {r['block']}: {r['queries']:,} × {r['keys']:,}",
    "expert": lambda r: f"{r['experts']} experts, {'one call' if r['together'] else 'in turn'}",
}


def steps_on_cpu() -> dict[tuple[str, str, int], float]:
    """Times of a step over those of PyTorch's own class, on ranks of a CPU."""
    with redirect_stdout(StringIO()) as said:
        records = {name: recorded(name)["rows"] for name in ("ddp", "zero", "fsdp")}
    print(*dict.fromkeys(said.getvalue().splitlines()), sep="\n")  # mostly one machine and day
    return {
        (name, row["way"], row["ranks"]): row["ratio"]
        for name, rows in records.items()
        for row in rows
        if row["what"] == "step"
    }


def steps_on_gpu() -> dict[tuple[str, str, int], float]:
    """The same, on one rank of a GPU, in fp32."""
    return {
        (row["section"], row["way"], row["ranks"]): row["ratio"]
        for row in recorded("gpu")["rows"]
        if row.get("what") == "step" and row["ranks"] == 1 and row["precision"] == "fp32"
    }


def bars(ratios: Ratios, ranks: int) -> Figure:
    """A step of each wrapper by each maker, and a line where PyTorch's own is."""
    groups = {
        maker: [ratios[record, ways[place], ranks] for record, *ways in WAYS.values()]
        for place, maker in enumerate(MAKERS)
    }
    figure = grouped_bars(groups, [*WAYS], y_label="time of a step over PyTorch's own")
    figure.axes[0].axhline(1, color=GREY, lw=1, ls="--")
    return figure


def all_steps(ratios: Ratios) -> Markdown:
    """Every way of every record, folded."""
    ranks = sorted({n for *_, n in ratios})
    ways = dict.fromkeys((record, way) for record, way, _ in ratios)
    rows = [[*way, *(ratios[*way, n] for n in ranks)] for way in ways]
    head = [f"{n} rank{'s' * (n > 1)}" for n in ranks]
    return folded("All ways", table(["record", "way", *head], rows))


def collectives() -> Markdown:
    """All-reduce by the choice of `auto`, over Gloo's own, folded."""
    ratio = {
        (f"{row['what']}, {row['ranks']} ranks", row["bytes"]): row["ratio"]
        for row in recorded("collectives")["rows"]
        if row["what"] == "all_reduce" and "ratio" in row
    }
    return folded("All sizes", by_size(ratio, list(dict.fromkeys(name for name, _ in ratio))))


def predicted(what: str, row: Row) -> float:
    """Seconds or bytes of a recorded run of the small job, at the H200's rates."""
    return ask(
        what, gpus=1, gpu="H200", tokens=row["tokens"], strategy=row["way"].split(",")[0],
        checkpointing=float(row["checkpointed"]), views="views" in row["way"],
        foreach="fused" not in row["way"],
    )  # fmt: skip


def small_times() -> Figure:
    """Milliseconds of the small job's step on a GPU: a bar as measured, a mark as predicted."""
    bars, marks = {}, {}
    for row in small_job():
        way = "checkpointed" if row["checkpointed"] else row["way"]  # as wide as its tokens
        name = f"{way}\n{row['tokens']:,} tokens"
        bars[name], marks[name] = {"measured": row["ms"][1]}, 1e3 * predicted("step", row)
    return stacked_bars(bars, x_label="milliseconds per step", marks=("predicted", marks))


def beside_predicted() -> Markdown:
    """Peaks and times of the small job on a GPU, predicted and measured, folded."""
    with redirect_stdout(StringIO()):  # the bars have said where and when
        found = small_job()
    rows = []
    for row in found:
        size = f"{predicted('peak', row) / 1e9:.1f} → {row['peak_bytes'] / 1e9:.1f}"
        took = f"{1e3 * predicted('step', row):.0f} → {row['ms'][1]:.0f}"
        rows.append([row["way"], row["tokens"], "yes" if row["checkpointed"] else "", size, took])
    head = ["small job", "tokens", "checkpointed", "peak, GB", "step, ms"]
    return folded("All numbers, predicted → measured", table(head, rows))


def widths() -> list[tuple[int, float, float]]:
    """(width, milliseconds predicted, and measured) of Llamas of eight blocks on a GPU."""
    found = []
    for row in recorded("gpu")["rows"]:
        if row.get("what") == "rate":
            w = row["width"]
            sizes = Sizes.llama(
                8, w, 7 * w // 2, w // 128, w // 512, 32_000, row["tokens"], tied=True
            )
            single = plan(sizes, H200, 1, batch=row["batch"], foreach=False).forecasts["single"]
            found.append((w, 1e3 * single.overlapped, row["ms"][1]))
    return found


def all_parts() -> Markdown:
    """Times of parts of a Llama's layer on a GPU, each beside the whole, folded."""
    rows = [[PARTS[r["what"]](r), f"{r['ms'][1]:.2f}", f"{r['ratio']:.2f}"] for r in split_layers()]
    return folded(
        "All parts", table(["part of a layer", "ms", "over its share of the whole"], rows)
    )


def share_of(rows: Sequence[Row], what: str, **named: object) -> float:
    """The time of one part over its share of the whole."""
    (row,) = (r for r in rows if r["what"] == what and named.items() <= r.items())
    return float(row["ratio"])
