"""Grids that others have run, and what a search predicts of them.

A run's price is that of its grid; what its source does not say is as is best. Of each source's
software one number is fitted, its speed beside the planner's, to the rows that are not `aside`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from course.pages.predicted import A100_40, H100_96
from course.pages.published import named, published
from minidist.formulas import grids, models
from minidist.formulas.compute import mfu
from minidist.formulas.inputs import Grid, Question
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, DtypePolicy, bytes_each
from minidist.planner.hardware import A100, ACCELERATORS, FASTER, GIB, Accelerator
from minidist.planner.planner import ROOM
from minidist.planner.sizes import Sizes

RECORDS = ("grids_others", "grids_megatron")
MEGATRON = DtypePolicy(  # 18 bytes per parameter: fp32 gradients beside bf16 weights
    "Megatron", torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.bfloat16
)
GPUS: dict[str, Accelerator] = ACCELERATORS | {
    "A100-40": A100_40,
    "H100-96": H100_96,
    "A800": A100._replace(name="A800 SXM", nvlink=200e9),
}
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
    limit: float  #: bytes that may be used of the GPU

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
    faster = FASTER.get(row["precision"], 1.0)
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
        found.append((peak > step.limit, seconds, Run(row, grid, speed, seen, peak, step.limit)))
    return min(found, key=lambda each: each[:2])[2] if found else None


@cache
def runs() -> list[Run]:
    """All rows that have a price."""
    return [each for each in map(run, rows()) if each]


def speeds(found: list[Run]) -> dict[str, float]:
    """For each software, how many times as fast as predicted it runs: fitted to rows not aside."""
    ratios: dict[str, list[float]] = {}
    for each in found:
        if not each.row["aside"]:
            ratios.setdefault(software(each.row), []).append(each.ratio)
    return {name: 1 / median(all_) for name, all_ in ratios.items()}


def software(row: dict[str, Any]) -> str:
    """The software of a row: one of a source, or two if it compares FSDP with something else."""
    return f"{row['source']}{', FSDP' * (row['data'] in FSDP)}"


# ---- what a page says of them ----


class Held(NamedTuple):
    """Runs beside their prices, with one speed for each source."""

    rows: int
    error: float  #: median, of the step's time
    worst: float  #: what one row in ten exceeds
    ranks: float  #: Spearman's correlation of speeds
    memory: float | None  #: median error of the peak, of rows that print it


def held(found: Sequence[Run]) -> Held:
    """How well these are predicted."""
    speed = speeds(runs())
    errors = sorted(abs(each.ratio * speed.get(software(each.row), 1.0) - 1) for each in found)
    peaks = [
        abs(each.peak / each.row["peak_GiB"] / GIB - 1) for each in found if each.row["peak_GiB"]
    ]
    return Held(
        len(found), median(errors), errors[9 * len(errors) // 10],
        correlated(found, unit), median(peaks) if peaks else None,
    )  # fmt: skip


def correlated(found: Sequence[Run], unit: Callable[[Run], float]) -> float:
    """Spearman's correlation of predicted and published speed, each in its unit."""
    one, other = (
        np.argsort(np.argsort([getattr(each, name) / unit(each) for each in found]))
        for name in ("predicted", "published")
    )
    return float(np.corrcoef(one, other)[0, 1])


def unit(each: Run) -> float:
    """What a run's speed is divided by to be TFLOP per second, attention counted in full."""
    if not each.row["tokens_per_s_per_gpu"] and not each.row["seconds"]:
        return 1.0
    sizes = each.row["sizes"]
    return float(1e12 * sizes.tokens / (3 * (sizes.operations + sizes.attention)))


def in_five(each: Run) -> bool:
    """Whether a search finds the degrees of this run among its five best."""
    return any(grids.same_degrees(each.grid, other["grid"]) for other in _best(each.row))


def _asked(row: dict[str, Any]) -> Question:
    """The question to which a row is an answer, at the speed of its software."""
    asked = question(row)
    speed = speeds(runs()).get(software(row), 1.0)
    gpu = asked.gpu._replace(utilization=min(1.0, asked.gpu.utilization * speed))
    return asked._replace(gpu=gpu)


def _best(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What a search finds for a row."""
    names = ("model", "gpu", "gpus", "sequence", "batch", "precision", "source")
    key = (row["data"] in FSDP, *(row[name] for name in names))
    if key not in _searched:
        _searched[key] = grids.search(_asked(row))["best"]
    return _searched[key]


_searched: dict[tuple[Any, ...], list[dict[str, Any]]] = {}


def summary() -> dict[str, float]:
    """The numbers of which the page speaks, of rows set aside unless they say otherwise."""
    found = runs()
    aside = [each for each in found if each.row["aside"]]
    best = [each for each in aside if each.row["best"]]
    dense = [each for each in aside if not each.row["sizes"].experts]
    mixed = [each for each in aside if each.row["sizes"].experts]
    told = held(aside)
    bad = [each for each in _worst(aside) if each.row["source"] == "playbook"]
    one, two = (turn(found, "Llama-like 80B", 128, 8, 4, batch) for batch in (1, 2))
    return {
        "runs": len(found),
        "sources": len({each.row["source"] for each in found}),
        "aside": len(aside),
        "known": sum(each.row["source"] == "llm-foundry" for each in aside),  #: to our rates
        "error": told.error,
        "worst": told.worst,
        "ranks": told.ranks,
        "dense": held(dense).error,
        "mixtures": held(mixed).error,
        "memory": told.memory or 0.0,
        "five": sum(map(in_five, best)) / len(best),
        "five_of": len(best),
        "five_dense": _share([each for each in best if not each.row["sizes"].experts]),
        "worst_of": len(_worst(aside)),
        "worst_playbook": len(bad),
        "worst_playbook_over": sum(_off(each) > 0 for each in bad) / len(bad),
        "worst_playbook_gpus": min(each.row["gpus"] for each in bad),
        "turn_one": one,
        "turn_two": two,
    }


def turn(
    found: Sequence[Run], model: str, gpus: int, tensor: int, pipeline: int, batch: int
) -> float:
    """Published seconds of a step of the Playbook's for each micro-batch of a replica."""
    wanted = ("playbook", model, gpus, tensor, pipeline, batch)
    names = ("source", "model", "gpus", "tensor", "pipeline", "micro_batch")
    (run,) = (each for each in found if tuple(each.row[name] for name in names) == wanted)
    tokens: float = batch * run.row["sequence"] * run.grid.data
    return tokens / run.published / gpus


def _off(each: Run) -> float:
    """The error of a run's speed: above 0 if it is slower than predicted."""
    return each.ratio * speeds(runs()).get(software(each.row), 1.0) - 1


def _worst(found: Sequence[Run]) -> list[Run]:
    """The tenth of these runs that is predicted worst."""
    return sorted(found, key=lambda each: -abs(_off(each)))[: len(found) // 10]


def _share(best: list[Run]) -> float:
    return sum(map(in_five, best)) / len(best)


def points() -> dict[str, list[tuple[float, float]]]:
    """Predicted and published TFLOP per second and GPU of rows set aside, by what they train."""
    speed = speeds(runs())
    found: dict[str, list[tuple[float, float]]] = {"dense models": [], "mixtures of experts": []}
    for each in runs():
        if each.row["aside"]:
            kind = "mixtures of experts" if each.row["sizes"].experts else "dense models"
            fitted = each.predicted * speed.get(software(each.row), 1.0)
            found[kind].append((fitted / unit(each), each.published / unit(each)))
    return found
