"""Grids that others have run, and what a search predicts of them.

A run's price is that of its grid; what its source does not say is as is best. Of each source one
number is fitted, the speed of its kernels beside the planner's, to the rows that are not `aside`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch

from course.pages.predicted import A100_40, H100_96
from course.pages.published import named, published
from minidist.formulas import grids, models
from minidist.formulas.compute import mfu
from minidist.formulas.inputs import Grid, Question
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, DtypePolicy, bytes_each
from minidist.planner.hardware import A100, ACCELERATORS, B200, GIB, H100, Accelerator
from minidist.planner.planner import ROOM
from minidist.planner.sizes import Sizes

RECORDS = ("grids_others", "grids_megatron")
MEGATRON = DtypePolicy(  # 18 bytes per parameter: fp32 gradients beside bf16 weights
    "Megatron", torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.bfloat16
)
H800 = H100._replace(name="H800 SXM", nvlink=200e9)
B300 = B200._replace(name="B300 SXM", memory=270 * GIB)
GPUS: dict[str, Accelerator] = ACCELERATORS | {
    "A100-40": A100_40,
    "H100-96": H100_96,
    "H800": H800,
    "B300": B300,
    "GB200": B200._replace(name="GB200 NVL72", per_node=72),
    "GB300": B300._replace(name="GB300 NVL72", per_node=72),
    "A800": A100._replace(name="A800 SXM", nvlink=200e9),
}
FP8 = 1.5  # how many times as fast fp8 makes a block's matrices: fitted to rows not aside
FSDP = ("fsdp", "hsdp")  # which Megatron and nanotron lack, or had not when they were run
DEGREES = ("tensor", "pipeline", "context", "expert")
SPEEDS = ("tokens_per_s_per_gpu", "seconds", "tflops")


@dataclass(frozen=True)
class Run:
    """A run of the record, and its price in the same unit: tokens or TFLOP per second and GPU."""

    row: dict[str, Any]
    grid: Grid  #: with what the source leaves open
    predicted: float
    published: float
    peak: float  #: predicted, bytes

    @property
    def ratio(self) -> float:
        """Predicted over published speed."""
        return self.predicted / self.published


def sizes_of(model: dict[str, Any], sequence: int) -> Sizes:
    """A model of the record in sequences of so many tokens."""
    layers, width, vocabulary = model["layers"], model["width"], model["vocabulary"]
    heads, kv_heads, head = model["heads"], model["kv_heads"], model.get("head") or 0
    if model.get("attention") == "MLA":  # as plain attention of as many parameters
        heads, kv_heads, head = 100, 2, 128
    if model.get("experts"):
        beside = model["expert_hidden"] * model["shared"]
        found = models.mixture(
            layers, width, model["expert_hidden"], heads, kv_heads, vocabulary, sequence,
            model["experts"], model["active"], beside, head,
        )  # fmt: skip
    elif model["gated"] or kv_heads != heads:
        found = models.llama(
            layers, width, model["hidden"], heads, kv_heads, vocabulary, sequence,
            bool(model["tied"]), head, int(model["gated"]),
        )  # fmt: skip
    else:
        found = models.gpt(layers, width, vocabulary, sequence)
    return Sizes(**found | {name: tuple(found[name]) for name in ("before", "block", "after")})


def rows() -> Iterator[dict[str, Any]]:
    """Rows of all records, each with its model's sizes."""
    for name in RECORDS:
        record = published(name)
        for row in named(record["columns"], record["rows"]):
            said = all(row[name] for name in ("gpus", "batch", *DEGREES))
            if said and row["gpu"] in GPUS and any(row[name] for name in SPEEDS):
                yield row | {"sizes": sizes_of(record["models"][row["model"]], row["sequence"])}


# GB/s of an all-gather on 1, 2, 4, ... 64 nodes of the Playbook's cluster, as it has measured them.
PLAYBOOK = (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0)


def hardware(row: dict[str, Any]) -> Accelerator:
    """The GPU of a row, with the network that its source has measured, if it has."""
    gpu = GPUS[row["gpu"]]
    if row["source"] == "playbook":
        group = max(row["tensor"], row["gpus"] // row["tensor"] // row["pipeline"] * row["tensor"])
        spans = row["tensor"] if row["tensor"] > gpu.per_node else group
        across = PLAYBOOK[max(0, math.ceil(math.log2(spans / gpu.per_node)))]
        return gpu._replace(network=1e9 * across / gpu.per_node)
    return gpu


def question(row: dict[str, Any]) -> Question:
    """The question to which a row is an answer."""
    gpu = hardware(row)
    policy = MEGATRON if row["data"] == "ddp" else AUTOCAST
    faster = FP8 if row["precision"] in ("fp8", "mxfp8") else 1.0
    most = 64
    ways = ("single", "ddp", "fsdp_kept") + (FSDP if row["data"] in FSDP else ())
    return Question(
        row["sizes"], gpu, bytes_each(policy), row["gpus"], row["batch"], ROOM * gpu.memory, True,
        ("1f1b",), most, faster, ways,
    )  # fmt: skip


def complete(row: dict[str, Any]) -> Iterator[Grid]:
    """Grids that a row may be: what its source does not say is tried each way."""
    split = row["tensor"], row["pipeline"], row["context"], row["expert"]
    data = row["gpus"] // (row["tensor"] * row["pipeline"] * row["context"])
    order = row["order"] if row["order"] in ("zero_bubble", "dualpipe") else "1f1b"
    # Megatron's distributed optimizer holds and sends what FSDP does that keeps weights.
    ways = ["fsdp_kept" if row["data"] in ("zero1", None) else row["data"]]
    batches = [row["micro_batch"]] if row["micro_batch"] else [1, 2, 4]
    again = [row["recompute"]] if row["recompute"] else ["none", "selective", "full"]
    stages = [row["interleaved"]] if row["interleaved"] else [1]
    if not row["interleaved"] and row["order"] == "interleaved":
        blocks = row["sizes"].units // row["pipeline"]
        stages = [each for each in (2, 4, 8, blocks) if each <= blocks]
    tensor, pipeline, context, expert = split
    for way in ways:
        for batch in batches:
            for chunks in stages:
                for each in again:
                    if data and row["batch"] % (data * batch) == 0:
                        yield Grid(
                            way if data * context > 1 else "single", data, tensor, pipeline,
                            context, expert, batch, chunks, order, each,
                        )  # fmt: skip


def run(row: dict[str, Any]) -> Run | None:
    """A row and its price; None if no whole number of micro-batches makes its batch."""
    asked, found = question(row), list[tuple[bool, float, Run]]()
    for grid in complete(row):
        step = grids.step_of(asked, grid)
        told = forecast(step, grid.strategy)
        seconds = told["overlapped"]
        speed = told["tokens_per_second"] / row["gpus"]
        seen = row["tokens_per_s_per_gpu"]
        if not seen and row["seconds"]:
            seen = row["batch"] * row["sequence"] / row["seconds"] / row["gpus"]
        if not seen:
            speed = mfu(step, seconds / step.accumulated) * step.gpu.flops / 1e12
            seen = row["tflops"]
        peak = memory(step, grid.strategy)["peak"]
        found.append((peak > step.limit, seconds, Run(row, grid, speed, seen, peak)))
    return min(found, key=lambda each: each[:2])[2] if found else None


@cache
def runs() -> list[Run]:
    """All rows that have a price."""
    return [each for each in map(run, rows()) if each]


def speeds(found: list[Run]) -> dict[str, float]:
    """For each source, how many times as fast as predicted it runs: fitted to rows not aside."""
    ratios: dict[str, list[float]] = {}
    for each in found:
        if not each.row["aside"]:
            ratios.setdefault(each.row["source"], []).append(each.ratio)
    return {source: 1 / median(all_) for source, all_ in ratios.items()}
