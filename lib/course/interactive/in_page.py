"""Which step a slider's controls describe, and what only sliders ask of it.

Runs in the page, as the library's formulas do: `compiled` says how. Bytes and seconds throughout.
"""

from __future__ import annotations

import math

from course.timing.backward import WAYS, backward, by_way
from minidist.formulas.compute import mfu
from minidist.formulas.grids import Fields, enough, search, spent
from minidist.formulas.inputs import Question, TrainingStep
from minidist.formulas.inside import tensor_parallel
from minidist.formulas.links import into_nodes
from minidist.formulas.models import gpt, llama, mixture, part, tensors
from minidist.formulas.reasons import binds, placed
from minidist.formulas.step import forecast, names_of, phases, traffic, works
from minidist.schedule.lanes import busy, end, spans
from minidist.schedule.steps import COMPUTE, NETWORK

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

    from minidist.formulas.inputs import Each, Gpu, Grid

VOCABULARY = 128256
ASPECT = 128  # width of a GPT in multiples of its blocks, as in GPT-3
SEQUENCE = 8192  # tokens, if a rank has as many


# ---- models ----


def shape(parameters: float) -> list[int]:
    """Blocks and width of a GPT with about so many parameters, and rotary positions.

    A block has 12 width² + 13 width of them; the width is a multiple of 64.
    """
    blocks = max(1, round((parameters / 12) ** (1 / 3) / ASPECT ** (2 / 3)))
    square, line = 12 * blocks, 13 * blocks + 2 + VOCABULARY
    root = math.sqrt(line * line + 4 * square * parameters)
    return [blocks, 64 * max(1, round((root - line) / (2 * square) / 64))]


def sized(model: list[Any], tokens: int) -> dict[str, Any]:
    """Fields of `Sizes` with such sequences: of a Llama's shape, or of a GPT's [parameters].

    Of a shape with experts, the last four are `mixture`'s.
    """
    if len(model) > 7:
        layers, width, hidden, heads, kv_heads, vocabulary, experts, active, beside, head = model
        return mixture(
            layers, width, hidden, heads, kv_heads, vocabulary, tokens, experts, active, beside,
            head,
        )  # fmt: skip
    if len(model) > 1:
        layers, width, hidden, heads, kv_heads, vocabulary, tied = model
        return llama(layers, width, hidden, heads, kv_heads, vocabulary, tokens, tied)
    blocks, wide = shape(model[0])
    found = gpt(blocks, wide, VOCABULARY, tokens)
    found["before"] = [VOCABULARY * wide]
    found["parameters"] -= tokens * wide
    return found


def whole(model: list[Any], tokens: int) -> Any:
    """Sizes of a model, with such sequences."""
    return Fields(sized(model, tokens))


def training(
    model: list[Any], tokens: int, gpu: Gpu, each: Each, ranks: int, cap: float = 25.0
) -> TrainingStep:
    """A step in which each rank has so many tokens, in sequences of 8,192 or in a shorter one.

    `cap`: MiB of DDP's buckets.
    """
    sequence = min(tokens, SEQUENCE)
    return of_sequences(model, sequence, tokens // sequence, gpu, each, ranks, cap)


def of_sequences(
    model: list[Any], tokens: int, batch: int, gpu: Gpu, each: Each, ranks: int, cap: float = 25.0
) -> TrainingStep:
    """A step of `batch` sequences per rank, each of so many tokens."""
    local, nodes = into_nodes(ranks, gpu)
    return TrainingStep(whole(model, tokens), gpu, each, local, nodes, batch, 0.0, cap)


# ---- plans ----


def planned(
    model: list[Any],
    tokens: int,
    gpu: Gpu,
    each: Each,
    ranks: int,
    batch: int,
    again: float,
    limit: float,
    split: list[int],
    only: str = "",
) -> dict[str, Any]:
    """Steps of a model under each strategy that `split` allows, or `only` one, and their forecasts.

    Args:
        again: the share of blocks that compute forward twice.
        limit: bytes of a GPU that may be used.
        split: tensor, pipeline, micro-batches, stages of a rank; `batch` is of a micro-batch.
    """  # fmt: skip
    tensor, pipeline, micro, interleaved = split
    sizes: Any = Fields(part(whole(model, tokens), tensor, pipeline, micro, interleaved))
    local, nodes = into_nodes(ranks, gpu, tensor, pipeline)
    step = TrainingStep(
        sizes, gpu, each, local, nodes, batch * micro, again, 25, False, False, [], tensor,
        pipeline, micro, interleaved, limit,
    )  # fmt: skip
    found: dict[str, Any] = {}
    for name in names_of(step) if only == "" else [only]:
        found[name] = forecast(step, name)
        found[name]["step"] = step
    return found


def moments(held: dict[str, float]) -> list[dict[str, float]]:
    """Parts of what a rank holds when backward begins, and in the update; see `memory`."""
    base = {"weights": held["weights"], "optimizer": held["optimizer"]}
    first = base.copy()
    first["gradients"] = held["buckets"]
    first["activations"] = held["activations"]
    first["unsharded"] = held["begins"]
    base["gradients"] = held["buckets"] + held["gradients"]
    base["unsharded"] = max(held["ends"], held["update"])
    return [first, base]


def largest(held: dict[str, float]) -> dict[str, float]:
    """Parts of what a rank holds when it holds most."""
    first, last = moments(held)
    return first if total(first) >= total(last) else last


def total(parts: dict[str, float]) -> float:
    """Bytes of all parts."""
    return sum([parts[name] for name in parts])


def usable(memory: float, room: float) -> float:
    """Bytes of a GPU's memory of which training may take the share `room`."""
    return room * memory


def alone(
    model: list[Any], tokens: int, gpu: Gpu, each: Each, batch: int, again: float, limit: float
) -> dict[str, Any]:
    """One GPU: its forecast, and what it holds when backward begins and in the update."""
    split = [1, 1, 1, 1]
    plans = planned(model, tokens, gpu, each, 1, batch, again, limit, split, "single")
    found: dict[str, Any] = plans["single"]
    found["moments"] = moments(found["memory"])
    return found


def dimensions(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Seconds of each part of a planned step in a grid, and the bytes that each dimension sends."""
    step: TrainingStep = found[name]["step"]
    takes = [work.takes for work in works(step, name) if work.lane != COMPUTE]
    sent = traffic(step, name)
    return {
        "sent": {"data": sent["data"], "tensor": sent["tensor"], "pipeline": sent["pipeline"]},
        "seconds": {
            "compute": found[name]["compute"],
            "bubble": found[name]["bubble"],
            "data": sum(takes),
            "tensor": tensor_parallel(step),
        },
    }


# ---- grids ----


def searched(
    model: list[Any],
    tokens: int,
    gpu: Gpu,
    each: Each,
    ranks: int,
    samples: int,
    limit: float,
    orders: list[str],
) -> dict[str, Any]:
    """The five best grids that fit, and why; if none does, the least, and on how many ranks.

    `samples`: of a step, of all ranks; `limit`: bytes of a GPU; `orders`: of a pipeline's work.
    """  # fmt: skip
    question = Question(whole(model, tokens), gpu, each, ranks, samples, limit, False, orders)
    told = search(question)
    found: dict[str, Any] = {"tried": told["tried"], "least": None, "enough": 0, "best": []}
    for one in told["best"]:
        step, forecast_ = one["step"], one["forecast"]
        seconds = forecast_["overlapped"]
        row = {"grid": written(one["grid"]), "seconds": seconds, "peak": forecast_["peak"]}
        row["mfu"] = mfu(step, seconds / step.accumulated)
        row["spent"] = spent(step, one["grid"].strategy, forecast_)
        row["binds"] = binds(question, one["grid"], row["spent"])
        row["placed"] = placed(one["grid"], gpu.per_node)
        found["best"].append(row)
    if len(found["best"]) == 0 and told["tried"] > 0:
        least = told["least"]
        found["least"] = {"grid": written(least["grid"]), "peak": least["peak"]}
        found["enough"] = enough(question)
    return found


def written(grid: Grid) -> dict[str, Any]:
    """A grid in plain names and numbers."""
    return {
        "strategy": grid.strategy,
        "data": grid.data,
        "tensor": grid.tensor,
        "pipeline": grid.pipeline,
        "context": grid.context,
        "expert": grid.expert,
        "batch": grid.batch,
        "interleaved": grid.interleaved,
        "order": grid.order,
        "recompute": grid.recompute,
        "nearer": grid.nearer,
    }


# ---- backward under DDP ----


def between(count: int, borders: list[int]) -> list[list[int]]:
    """Buckets of so many gradients, the last one first; each border: how many come before it."""
    found: list[list[int]] = [[] for _ in range(len(borders) + 1)]
    for place in range(count):
        before = [border for border in borders if border <= place]
        found[len(before)].append(count - 1 - place)
    return [bucket for bucket in found if len(bucket) > 0]


def bordered(step: TrainingStep, borders: list[int]) -> dict[str, Any]:
    """Backward with these borders between buckets."""
    return during(step, between(len(tensors(step.sizes)), borders))


def during(step: TrainingStep, buckets: list[list[int]]) -> dict[str, Any]:
    """Backward with these buckets, each of which leaves when it is full."""
    return backward(step, buckets, True)


def ways(step: TrainingStep) -> list[dict[str, Any]]:
    """Backward under each of `WAYS`."""
    return [by_way(step, way) for way in WAYS]


# ---- scaling ----


def scaled(
    model: list[Any], tokens: int, batch: int, gpu: Gpu, each: Each, ranks: int, together: int
) -> dict[str, float]:
    """A step of DDP in which each rank has `batch` sequences: its parts, and its efficiency.

    Efficiency is beside one rank whose steps have so many sequences `together`.
    """
    step = of_sequences(model, tokens, batch, gpu, each, ranks)
    alone = sum(phases(of_sequences(model, tokens, together, gpu, each, 1), "ddp"))
    found, takes = spans(works(step, "ddp")), phases(step, "ddp")
    return {
        "forward": takes[0],
        "backward": takes[1],
        "update": takes[2],
        "communication": busy(found, NETWORK),
        "seconds": end(found),
        "efficiency": alone / together * batch / end(found),
        "starts": min([span.start for span in found if span.lane == NETWORK]),
        "ends": max([span.end for span in found if span.lane == NETWORK]),
    }


# ---- prices of schedules ----


def price(counts: list[float], nbytes: float, alpha: float, bandwidth: float) -> float:
    """Seconds of a schedule on a switch: `counts` of messages that follow each other, and tensors.

    `alpha`: seconds per message; `bandwidth`: bytes per second, 1 / β.
    """
    return counts[0] * alpha + counts[1] * nbytes / bandwidth


def best(counts: dict[str, list[float]], nbytes: float, alpha: float, bandwidth: float) -> str:
    """The schedule that takes least."""
    found = ""
    for name in counts:
        takes = price(counts[name], nbytes, alpha, bandwidth)
        if found == "" or takes < price(counts[found], nbytes, alpha, bandwidth):
            found = name
    return found


def crossings(counts: dict[str, list[float]], alpha: float, bandwidth: float) -> list[list[Any]]:
    """Sizes at which another schedule becomes the best, as [bytes, from, to], smallest first."""
    now = best(counts, 1e-9, 1.0, 1.0)  # fewest messages, then fewest bytes
    found: list[list[Any]] = []
    while True:
        then, least = "", math.inf
        for name in counts:
            fewer, more = counts[now][1] - counts[name][1], counts[name][0] - counts[now][0]
            if fewer > 0:
                at = more * alpha / fewer * bandwidth
                if at < least or (at == least and counts[name][1] < counts[then][1]):
                    then, least = name, at
        if then == "":
            return found
        found.append([least, now, then])
        now = then


# ---- failures and checkpoints: Daly's model (2006) ----


def lost(interval: float, save: float, mtbf: float, restart: float) -> Any:
    """Shares of a run's time that train nothing new, if failures come at random.

    `saving` is that of checkpoints, `again` of waiting for the restart and of doing again what was
    not saved, `total` of all.

    Args:
        interval: seconds of training from save to save.
        save: seconds that it takes.
        mtbf: seconds between failures on all ranks, on average.
        restart: seconds from a failure until training goes on.
    """
    exponent, saving, total = (interval + save) / mtbf, 0.0, 1.0
    if restart / mtbf + exponent <= 700:  # or it would never get that far
        took = mtbf * math.exp(restart / mtbf) * math.expm1(exponent)
        saving, total = save / took, 1 - interval / took
    return Fields({"saving": saving, "again": total - saving, "total": total})


def best_interval(save: float, mtbf: float) -> float:
    """The interval that loses least: where (1 - x) e^x = e^(-save/mtbf), for x = interval/mtbf."""
    low, high, goal = 0.0, 1.0, math.exp(-save / mtbf)
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle) * math.exp(middle) > goal:
            low = middle
        else:
            high = middle
    return mtbf * low


def rule_of_thumb(save: float, mtbf: float) -> float:
    """Young's first-order answer (1974): sqrt(2 * save * mtbf)."""
    return math.sqrt(2 * save * mtbf)
