"""Grids of ranks: all ways to split the training of a model among them, and the best.

[Note: grids] A step has a given number of samples, so ranks that split a layer, the blocks or a
sequence leave fewer replicas, and each has more samples. Tensor groups fill nodes first, then
context, then data, and a pipeline's ranks are farthest apart; or a pipeline comes next to tensor,
where both fit into a node. Tensor is first because it sends most, and nothing hides it. Of the six
orders of the others none has more in a node than one of these two: replicas exchange over context
and data alike, so that data gains nothing by coming before context. Whatever is not named here is
as in `step.forecast`. No grid is left out that could be among the best: `bound` is what it takes at
least, grids are priced in the order of that, and the search ends when the least that is left takes
longer than the last that is kept. The one rule of thumb is `PIECE`: of what a rank loses with few
tokens nothing is measured.
"""

from __future__ import annotations

from minidist.formulas.compute import again, compute, passes
from minidist.formulas.inputs import Grid, Question, TrainingStep
from minidist.formulas.inside import (
    borders,
    context_parallel,
    expert_parallel,
    tensor_parallel,
    within,
)
from minidist.formulas.links import into_nodes
from minidist.formulas.memory import memory, sample_activations, state
from minidist.formulas.models import bubble, experts_of, part
from minidist.formulas.step import forecast, phases

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

WIDER = 1.05  # grids whose bounds lie so close are priced together
PIECE = 4096  # tokens of a sequence that a rank has at least: no published run has fewer
MOST_TENSOR, MOST_BATCH = 64, 16
KEPT = {"none": 0.0, "selective": 1.0, "full": 1.0}  # the share of blocks that compute again


class Fields:
    """A record with these fields, as `Shape` is one."""

    def __init__(self, values: dict[str, Any]) -> None:
        for name in values:
            setattr(self, name, values[name])


def rest(whole: float, number: float) -> float:
    """What is left of the whole if it is divided into so many equal whole parts."""
    return whole - whole // number * number


def powers(most: float) -> list[int]:
    """Powers of two up to the most."""
    found, now = [], 1
    while now <= most:
        found.append(now)
        now = 2 * now
    return found


# ---- one grid ----


def micro_batches(question: Question, grid: Grid) -> int:
    """Micro-batches of a replica in a step."""
    return question.samples // (grid.data * grid.batch)


def step_of(question: Question, grid: Grid, parts: dict[str, Any] | None = None) -> TrainingStep:
    """A rank's step in a grid. `parts`: of a model, known already, and the new one is added."""
    micro, before = micro_batches(question, grid), 1
    if grid.pipeline == 1:
        micro, before = 1, micro
    gpu, known = question.gpu, {} if parts is None else parts
    ways = [grid.tensor, grid.pipeline, micro, grid.interleaved, grid.context, grid.expert]
    key = grid.order + ",".join([str(each) for each in ways])
    if key not in known:
        known[key] = Fields(
            part(
                question.sizes, grid.tensor, grid.pipeline, micro, grid.interleaved, grid.order,
                grid.context, grid.expert,
            )
        )  # fmt: skip
    near, far = grid.tensor, grid.pipeline
    if grid.nearer == "pipeline":
        near, far = near * far, 1
    local, nodes = into_nodes(question.ranks, gpu, near, far)
    return TrainingStep(
        known[key], gpu, question.each, local, nodes, grid.batch * micro, KEPT[grid.recompute],
        25, False, question.fused_loss, [], grid.tensor, grid.pipeline, micro, grid.interleaved,
        question.limit, grid.order, grid.context, grid.expert, before,
        grid.recompute == "selective", question.faster, question.muon, grid.nearer,
    )  # fmt: skip


def bound(step: TrainingStep) -> float:
    """Seconds that the step takes at least: its compute, what it sends inside layers, waiting."""
    waits = bubble(step.pipeline, step.micro_batches, step.interleaved, step.order)
    return step.accumulated * (1 + waits) * (sum(compute(step)) + within(step)) + borders(step)


def spent(step: TrainingStep, strategy: str, told: dict[str, Any]) -> dict[str, float]:
    """Where the seconds of a step go; together they are its `overlapped`.

    `data`: what replicas exchange and nothing hides; `update`: the optimizer's reads and writes.
    """
    blocks, times = passes(step)[0], step.accumulated
    computes, repeated = sum(compute(step)), again(step) * blocks
    waits = bubble(step.pipeline, step.micro_batches, step.interleaved, step.order)
    found = {
        "compute": times * (computes - repeated),
        "recomputation": times * repeated,
        "tensor": times * tensor_parallel(step),
        "context": times * context_parallel(step),
        "expert": times * expert_parallel(step),
        "bubble": waits * (computes + within(step)),
        "borders": borders(step),
        "update": phases(step, strategy)[2],
    }
    found["data"] = told["overlapped"] - sum([found[name] for name in found])
    return found


# ---- all of them ----


def degrees(question: Question) -> list[list[int]]:
    """Ways to split a model on these ranks, each [data, tensor, pipeline, context, expert]."""
    sizes, gpu, found = question.sizes, question.gpu, []
    experts = experts_of(sizes)
    for tensor in powers(min(MOST_TENSOR, 2 * gpu.per_node, question.ranks)):
        for context in powers(question.contexts if sizes.keys > 0 else 1):
            even = rest(sizes.tokens, 2 * context) == 0
            if context == 1 or (even is True and sizes.tokens >= context * PIECE):
                for pipeline in range(1, sizes.units + 1):
                    group = tensor * context * pipeline
                    data = question.ranks // group
                    left = rest(sizes.width, tensor) + rest(question.ranks, group)
                    if left == 0 and data <= question.samples and rest(question.samples, data) == 0:
                        for expert in powers(min(experts, data * context)):
                            if rest(data * context, expert) == 0 and rest(experts, expert) == 0:
                                found.append([data, tensor, pipeline, context, expert])
    return found


def orders(question: Question, way: list[int], batch: int) -> list[list[Any]]:
    """Orders in which a pipeline may work, each [its name, stages of a rank]."""
    data, pipeline = way[0], way[2]
    if pipeline == 1:
        return [["1f1b", 1]]
    micro = question.samples // (data * batch)
    found: list[list[Any]] = []
    for order in question.orders:
        if (order != "dualpipe") or (micro >= 2 * pipeline):
            found.append([order, 1])
    most = (question.sizes.units + 2) // pipeline
    for stages in range(2, most + 1):
        blocks, all_stages = question.sizes.units, pipeline * stages
        even = rest(blocks, all_stages) * rest(blocks + 2, all_stages) == 0  # or with both ends
        if rest(micro, pipeline) == 0 and even is True:
            found.append(["1f1b", stages])
    return found


def variants(question: Question) -> list[Grid]:
    """All grids, but for their strategies."""
    found = []
    for way in degrees(question):
        data, tensor, pipeline, context, expert = way
        for batch in powers(min(MOST_BATCH, question.samples // data)):
            if rest(question.samples, data * batch) == 0:
                for order, stages in orders(question, way, batch):
                    for again in recomputed(question, order):
                        for nearer in placings(question, way):
                            one = Grid(
                                "", data, tensor, pipeline, context, expert, batch, stages, order,
                                again, nearer,
                            )  # fmt: skip
                            found.append(one)
    return found


def placings(question: Question, way: list[int]) -> list[str]:
    """Whose ranks may be neighbors, data's or the pipeline's, if it makes a difference."""
    near, full = way[1] * way[2], question.gpu.per_node
    found = ["data"]
    if way[2] > 1 and near <= full and full < question.ranks:
        found.append("pipeline")
    return found


def recomputed(question: Question, order: str) -> list[str]:
    """What may be computed again: an order that divides backward computes no block twice."""
    found = ["none"]
    if question.sizes.activations_selective > 0:
        found.append("selective")
    if order == "1f1b":
        found.append("full")
    return found


def strategies(question: Question, step: TrainingStep) -> list[str]:
    """Strategies of the replicas; what gathers for each micro-batch is left out of a pipeline."""
    known = ["ddp", "zero1", "fsdp_kept"]
    if step.local * step.nodes == 1:
        known = ["single"]
    elif step.pipeline == 1:
        known = ["ddp", "fsdp_kept", "fsdp"]
        if step.nodes > 1 and step.local > 1:
            known.append("hsdp")
    return [name for name in known if name in question.ways]


def search(question: Question, keep: int = 5) -> dict[str, Any]:
    """The fastest grids that fit, of each way to split the model the best, and what was tried.

    `best`: the fastest first, each with its `grid`, its `step` and its `forecast`. `tried`: grids
    that there are, `priced`: those whose step was priced. `least`: of those looked at, the one
    that needs least memory.
    """
    parts: dict[str, Any] = {}
    grids = variants(question)
    steps = [step_of(question, grid, parts) for grid in grids]
    bounds = [bound(step) for step in steps]
    found: dict[str, Any] = {"best": [], "tried": len(grids), "priced": 0, "least": None}
    if len(grids) == 0:
        return found
    low, high, most = -1.0, WIDER * min(bounds), max(bounds)
    while low < most and (len(found["best"]) < keep or low < slowest(found)):
        for place in range(len(grids)):
            if low < bounds[place] <= high:
                _try(question, found, grids[place], steps[place], keep)
        low, high = high, WIDER * high
    return found


def enough(question: Question) -> int:
    """Ranks on which something fits, 2, 4, ... or 64 times as many; 0 if nothing does."""
    for times in (2, 4, 8, 16, 32, 64):
        ranks = times * question.ranks
        more = Question(
            question.sizes, question.gpu, question.each, ranks, question.samples, question.limit,
            question.fused_loss, question.orders, question.contexts, question.faster, question.ways,
            question.muon,
        )  # fmt: skip
        if len(search(more, 1)["best"]) > 0:
            return ranks
    return 0


def slowest(found: dict[str, Any]) -> float:
    """Seconds of the last grid that is kept."""
    seconds: float = found["best"][len(found["best"]) - 1]["forecast"]["overlapped"]
    return seconds


def _try(
    question: Question, found: dict[str, Any], grid: Grid, step: TrainingStep, keep: int
) -> None:
    """Price a grid with each strategy, and keep it if it is among the best.

    One that needs more than there is whatever the strategy is not priced.
    """
    names, least = strategies(question, step), found["least"]
    if floor(step) > step.limit:
        if least is not None and floor(step) >= least["peak"]:
            return
        names = names[len(names) - 1 :]
    for name in names:
        peak = memory(step, name)["peak"]
        if least is None or peak < least["peak"]:
            least = {"grid": named(grid, name), "step": step, "peak": peak}
            found["least"] = least
        if peak <= step.limit:
            found["priced"] += 1
            told = forecast(step, name)
            _keep(found["best"], {"grid": named(grid, name), "step": step, "forecast": told}, keep)


def floor(step: TrainingStep) -> float:
    """Bytes that a rank holds at least, whatever the strategy: activations, and its share."""
    count = step.sizes.parameters + step.sizes.experts * (step.expert - 1)
    held = state(count, step.each, step.local * step.nodes, 3)
    return held["total"] - held["gradients"] + step.batch * sample_activations(step, 3)


def named(grid: Grid, strategy: str) -> Grid:
    """The grid with this strategy."""
    return changed(grid, strategy, grid.batch, grid.recompute)


def changed(grid: Grid, strategy: str, batch: int, recompute: str) -> Grid:
    """The same degrees with such a strategy, such micro-batches, and so much computed again."""
    return Grid(
        strategy, grid.data, grid.tensor, grid.pipeline, grid.context, grid.expert, batch,
        grid.interleaved, grid.order, recompute, grid.nearer,
    )  # fmt: skip


def same_degrees(one: Grid, other: Grid) -> bool:
    """True if both split the model alike."""
    return (
        one.tensor == other.tensor
        and one.pipeline == other.pipeline
        and one.context == other.context
        and one.expert == other.expert
    )


def _keep(best: list[dict[str, Any]], told: dict[str, Any], most: int) -> None:
    """Put a grid in its place among the best, as the only one with its degrees."""
    takes = told["forecast"]["overlapped"]
    for place in range(len(best)):
        if same_degrees(best[place]["grid"], told["grid"]):
            if best[place]["forecast"]["overlapped"] <= takes:
                return
            best.pop(place)
            break
    place = 0
    while place < len(best) and best[place]["forecast"]["overlapped"] <= takes:
        place += 1
    best.insert(place, told)
    if len(best) > most:
        best.pop()
