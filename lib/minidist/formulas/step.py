"""A training step as work on lanes: what it sends, and what it takes.

A step computes, reads and writes memory, and communicates; what of that is exposed, its work on
lanes says. A collective takes what NCCL's cost model gives at line rate, or what was measured.
"""

from __future__ import annotations

import math

from minidist.formulas.compute import again, compute, head_shares
from minidist.formulas.inside import borders, sent_inside, tensor_calls, within
from minidist.formulas.links import HALVES, collective, collectives, even
from minidist.formulas.memory import STAGES, bucket_bytes, buckets, memory, sharing
from minidist.formulas.models import bubble, ready, root
from minidist.formulas.update import orthogonalizing, sent_to_owners, to_owners
from minidist.schedule.lanes import Work, end, spans
from minidist.schedule.steps import COMPUTE, NETWORK, Unit, bucketed, sharded

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

    from minidist.formulas.inputs import TrainingStep
    from minidist.schedule import lanes, steps


TO_OWNERS = "all-to-all"  # that Muon needs
# The ladder of PyTorch's strategies, the simplest first, and ZeRO's stages beside it.
LADDER = ["single", "ddp", "fsdp_kept", "fsdp", "hsdp"]
# What is sent, as (collective, what, over whom): in forward, in backward, and after it, when
# nothing hides it. ZeRO-1 averages gradients in the optimizer's step.
REDUCE = ["reduce_scatter", "gradients", "ranks"]
GATHER = ["all_gather", "weights", "ranks"]
SENDS: dict[str, list[list[list[str]]]] = {
    "single": [[], [], []],
    "ddp": [[], [["all_reduce", "gradients", "ranks"]], []],
    "zero1": [[], [], [REDUCE, GATHER]],
    "zero2": [[], [REDUCE], [GATHER]],
    "fsdp_kept": [[GATHER], [REDUCE], []],
    "fsdp": [[GATHER], [GATHER, REDUCE], []],
    "hsdp": [
        [["all_gather", "weights", "node"]],
        [
            ["all_gather", "weights", "node"],
            ["reduce_scatter", "gradients", "node"],
            ["all_reduce", "gradients", "nodes"],
        ],
        [],
    ],
}


def memory_traffic(step: TrainingStep, strategy: str) -> list[float]:
    """Seconds of reading weights, writing gradients, and the optimizer's reads and writes.

    Each micro-batch reads the weights again, and writes gradients. The optimizer reads a gradient,
    reads and writes what it updates and its moments, and writes the weights, if they are another
    copy.
    """
    each, count = step.each, step.sizes.parameters
    weights, gradients = nbytes(step, strategy, "weights"), nbytes(step, strategy, "gradients")
    updated = 2 * each.master + each.weights if each.master > 0 else 2 * each.weights
    moved = count * (each.gradients + 2 * each.moments + updated)
    mine = sharing(step, strategy)
    weights, gradients = weights * step.micro_batches, gradients * step.micro_batches
    passed = 1 + again(step)
    return [
        weights / step.gpu.bandwidth,
        (passed * weights + gradients) / step.gpu.bandwidth,
        moved / mine / step.gpu.bandwidth,
    ]


def phases(step: TrainingStep, strategy: str) -> list[float]:
    """Seconds of forward, backward and update alone: a GPU computes while it reads and writes.

    Muon orthogonalizes first, and then the update reads and writes.
    """
    computes, moves = compute(step), memory_traffic(step, strategy)
    found = [max(computes[phase], moves[phase]) for phase in range(3)]
    found[2] += orthogonalizing(step, strategy)
    return found


def one_pass(step: TrainingStep, strategy: str) -> list[float]:
    """As `phases`, of one micro-batch of a pipeline, beside whose passes replicas communicate."""
    forward, backward, update = phases(step, strategy)
    return [forward / step.micro_batches, backward / step.micro_batches, update]


def gradients_ready(step: TrainingStep, strategy: str) -> list[float]:
    """Seconds from the beginning of backward until it has made each gradient of `tensors`.

    In a pipeline, of the last micro-batch's backward.
    """
    whole, head = one_pass(step, strategy)[1], head_shares(step)[1]
    return [share * whole for share in ready(step.sizes, head)]


# ---- communication ----


def nbytes(step: TrainingStep, strategy: str, what: str) -> float:
    """Bytes of all weights or gradients, as they are sent: FSDP gathers in the compute dtype."""
    each = step.each
    if what == "gradients":
        return step.sizes.parameters * each.gradients
    return step.sizes.parameters * (each.compute if STAGES[strategy] == 3 else each.weights)


def traffic(step: TrainingStep, strategy: str) -> dict[str, float]:
    """Bytes that a rank sends in each dimension, and in how many `messages` if rings carry them.

    `data`: to other replicas. `pipeline`: each stage's activations, and their gradients. Of a
    step's first micro-batch, if they follow each other; the others as `sent_inside` says.
    """
    pieces = len(buckets(step, strategy))
    if STAGES[strategy] == 3:
        pieces = step.sizes.units + (1 if root(step.sizes) > 0 else 0)
    counts = {"ranks": step.local * step.nodes, "node": step.local, "nodes": step.nodes}
    sent, messages = 0.0, 0.0
    for phase in SENDS[strategy]:
        for name, what, over in phase:
            ranks = counts[over]
            size = nbytes(step, strategy, what) / (step.local if over == "nodes" else 1)
            sent += HALVES[name] * size * (ranks - 1) / ranks
            messages += HALVES[name] * pieces * (ranks - 1)
    messages += tensor_calls(step)[0] * (step.tensor - 1)
    borders = 0  # that a rank's stages send over, those of the busiest rank; of two each is an end
    if step.pipeline > 1:
        borders = 2 * step.interleaved - (1 if step.pipeline == 2 else 0)
    numbers = borders * step.batch * step.sizes.tokens * step.sizes.width
    messages += borders * step.micro_batches
    found = sent_inside(step)
    found["data"] = sent + sent_to_owners(step, strategy)
    found["messages"] = messages
    found["pipeline"] = numbers * step.each.compute
    return found


# ---- a step ----


def works(step: TrainingStep, strategy: str) -> list[lanes.Work]:
    """All that a rank does in a step, on lanes; without tensor parallelism and bubbles.

    FSDP gathers one unit ahead, in forward as in backward. Of a pipeline's micro-batches one is
    here: weights come with the first forward, and gradients leave with the last backward.
    """
    forward, backward, update = one_pass(step, strategy)
    if STAGES[strategy] == 3:
        outside, blocks = units(step, strategy)
        found = sharded(outside, blocks, [1, 1], strategy == "fsdp_kept")
        _update(step, strategy, found, update)
        return found
    found = [Work(COMPUTE, "forward", forward, [])]
    during, later = SENDS[strategy][1], SENDS[strategy][2]
    if len(during) > 0:
        name = during[0][0]
        made = gradients_ready(step, strategy)
        takes = collectives(step, name, bucket_bytes(step, strategy))
        for work in bucketed(made, buckets(step, strategy), takes, name.replace("_", "-")):
            work.after = [place + 1 for place in work.after]
            found.append(work)
    else:
        found.append(Work(COMPUTE, "backward", backward, []))
    if len(later) > 1:
        _one_by_one(step, found, "reduce_scatter", step.each.gradients)
    _update(step, strategy, found, update)
    if len(later) > 0:
        _one_by_one(step, found, "all_gather", step.each.weights)
    return found


def _update(step: TrainingStep, strategy: str, found: list[lanes.Work], takes: float) -> None:
    """Add the update after all that is there; Muon's between its two all-to-alls."""
    exchange = to_owners(step, strategy)
    if exchange > 0:
        found.append(Work(NETWORK, TO_OWNERS, exchange, _last(found)))
    found.append(Work(COMPUTE, "update", takes, _last(found)))
    if exchange > 0:
        found.append(Work(NETWORK, TO_OWNERS, exchange, _last(found)))


def _last(found: list[lanes.Work]) -> list[int]:
    """Place of the last work of each lane."""
    last: dict[str, int] = {}
    for place, work in enumerate(found):
        last[work.lane] = place
    return [last[lane] for lane in last]


def _one_by_one(step: TrainingStep, found: list[lanes.Work], name: str, each: int) -> None:
    """Add a collective for each bucket, of so many bytes per parameter, after all that is there."""
    after, part = _last(found), each / step.each.gradients
    sizes = [part * size for size in bucket_bytes(step, "zero1")]
    for takes in collectives(step, name, sizes):
        found.append(Work(NETWORK, name.replace("_", "-"), takes, after))


def units(step: TrainingStep, strategy: str) -> tuple[steps.Unit | None, list[steps.Unit]]:
    """The root under FSDP, None if there is nothing in it, and the blocks, with their seconds."""
    forward, backward, _ = one_pass(step, strategy)
    sizes, each = step.sizes, step.each
    over = "node" if strategy == "hsdp" else "ranks"
    head = head_shares(step) if root(sizes) > 0 else [0.0, 0.0]

    def unit(parameters: float, of_forward: float, of_backward: float) -> Unit:
        across = 0.0
        if strategy == "hsdp":
            across = collective(step, "all_reduce", parameters * each.gradients, "nodes")
        return Unit(
            forward * of_forward,
            backward * of_backward,
            collective(step, "all_gather", parameters * each.compute, over),
            collective(step, "reduce_scatter", parameters * each.gradients, over),
            across,
        )

    blocks = [(1 - share) / sizes.units for share in head]
    block = unit(sizes.largest_unit, blocks[0], blocks[1])
    outside = unit(root(sizes), head[0], head[1]) if root(sizes) > 0 else None
    return outside, [block for _ in range(sizes.units)]


def forecast(step: TrainingStep, strategy: str) -> dict[str, Any]:
    """Fields of `minidist.planner.planner.Forecast`: seconds, bytes and messages of a step.

    The tokens are those of all ranks, of one if it is alone, under "single"; and the largest batch
    is a micro-batch that fits `step.limit`.
    """
    alone, parts = sum(phases(step, strategy)), works(step, strategy)
    inside, between, ran = within(step), 0.0, spans(parts)
    for work in parts:
        between += work.takes if work.lane != COMPUTE else 0.0
    update = phases(step, strategy)[2]
    exchanged = 2 * to_owners(step, strategy)
    waits = bubble(step.pipeline, step.micro_batches, step.interleaved, step.order)
    waits = waits * (alone - update + inside) + borders(step)
    others = (1 - 1 / step.micro_batches) * (alone - update)  # micro-batches of a pipeline
    overlapped = end(ran) + others + inside + waits
    moved, held_now = traffic(step, strategy), memory(step, strategy)
    before = step.accumulated - 1  # micro-batches that only add to the gradients
    each = end(ran) - update - exchanged if sends_each(strategy) else alone - update
    overlapped += before * (each + inside)
    alone += before * (alone - update)
    communication = (before + 1) * inside
    communication += between + (before * (between - exchanged) if sends_each(strategy) else 0)
    free = step.limit - held_now["always"]
    one = held_now["activations"] / (step.batch / step.micro_batches)
    finish = held_now["gradients"] + max(held_now["ends"], held_now["update"])
    room = math.floor((free - held_now["begins"]) / one) if finish <= free else 0
    ranks = 1 if strategy == "single" else step.local * step.nodes
    tokens = ranks * step.batch * step.accumulated * step.sizes.tokens
    return {
        "memory": held_now,
        "peak": held_now["peak"],
        "fits": held_now["peak"] <= step.limit,
        "largest_batch": max(0, room),
        "sent": sum([moved[name] for name in moved if name != "messages"]),
        "messages": round(moved["messages"]),
        "compute": step.accumulated * sum(compute(step)),
        "memory_traffic": sum(memory_traffic(step, strategy)),
        "communication": communication,
        "bubble": waits,
        "sequential": alone + communication + waits,
        "overlapped": overlapped,
        "exposed": overlapped - alone - waits,
        "tokens_per_second": tokens / overlapped,
    }


def sends_each(strategy: str) -> bool:
    """True if each micro-batch communicates, and not the step as a whole.

    Whoever keeps weights keeps them, and whole gradients, until the last micro-batch.
    """
    return strategy in ("zero2", "fsdp", "hsdp")


def rungs(pipeline: int) -> list[str]:
    """Strategies to recommend, the simplest first: PyTorch's ladder, and of ZeRO in a pipeline."""
    return LADDER if pipeline == 1 else ["single", "ddp", "zero1", "zero2"]


def recommended(found: dict[str, Any], pipeline: int, close: float) -> str:
    """The first of `rungs` whose forecast fits and is `close` to the fastest; "" if none."""
    fits = [each for each in rungs(pipeline) if each in found and found[each]["fits"] is True]
    fastest = 0.0
    for name in fits:
        fastest = max(fastest, found[name]["tokens_per_second"])
    for name in fits:
        if found[name]["tokens_per_second"] >= close * fastest:
            return name
    return ""


def tokens_to_hide(
    sent: float, work: float, speed: float, bandwidth: float, latency: float, piece: float
) -> float:
    """Tokens per GPU and step with which a pass of a dense transformer hides its communication.

    They are T = (W / K) F / B, and latency F / (K parameters) more: while W bytes per parameter
    travel, the GPU does K operations per token and parameter.

    Args:
        sent: W, bytes per parameter: forward under FSDP 2, backward 6; DDP's backward 8; all times
            (N - 1) / N.
        work: K, operations per parameter and token.
        speed: F, operations per second, as `rate` gives them.
        bandwidth: B, bytes per second of a node.
        latency: seconds of the collectives of one piece.
        piece: parameters of a unit or a bucket.
    """
    return sent / work * speed / bandwidth + latency * speed / (work * piece)


def names_of(step: TrainingStep) -> list[str]:
    """Strategies that a place allows: hybrid sharding wants several full nodes.

    Those that gather weights for each micro-batch are left out of a pipeline.
    """
    names = ["single", "ddp", "zero1", "zero2", "fsdp_kept"]
    if step.pipeline == 1:
        names.append("fsdp")
        full = even(max(1, step.gpu.per_node // step.tensor))
        if step.nodes > 1 and step.local >= full and step.local > 1:
            names.append("hsdp")
    return names
