"""F of a Llama's block on one GPU: of its matrices, and of causal attention, apart.

A block of each of the book's jobs trains alone, on one sequence: forward, backward, and AdamW in
one launch. It trains again with a sum in place of attention, which also reads queries, keys and
values; what is saved is attention's time. Operations are counted as a plan counts them: backward
twice those of forward, and a recomputed block its forward once more, of which torch leaves out the
last product unless the block is compiled.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.cases.small_job import PARTS, Run, Shape, accelerator, block_of, tried
from benchmarks.harness import environment, turns
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.streams import add, attempt, streamed
from course.training import models
from minidist.planner import jobs

BLOCKS = tuple(Shape(1, *shape[1:6]) for shape in jobs.SHAPES.values())
TOKENS = (2048, 8192, 32_768)
WAYS = ("bf16", "autocast", "bf16, compiled", "autocast, compiled")  # time may run out in the last
LEAST, MOST = 2, 7  # rounds in which the parts are timed
COMPLETING = 100  # seconds at most for what an earlier record lacks
START = 30  # seconds for a process to begin, and for the last run, which may compile, to end


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each run, also if it found no memory or no time; they outlive a crash.

    If an earlier record of the same GPU and torch lacks some, only those are measured.
    """
    each = product(WAYS, BLOCKS, (False, True), TOKENS)
    runs = [Run(way, shape, tokens, 1, again) for way, shape, again, tokens in each]
    alone, seconds = Setup(1, scope.device), clock.left()
    yield from streamed(alone, on_rank, runs, seconds - START, scope.earlier, timeout=seconds)


def on_rank(runs: list[Run], seconds: float, earlier: Row, path: str) -> None:
    """On the only rank: each run, one after the other, and a line for each.

    Raises:
        RuntimeError: some failed, but not for want of memory or time.
    """
    if kept := complete(runs, earlier):
        for known in kept.values():
            add(path, known)
        runs = sorted((run for run in runs if run not in kept), key=most_wanted)
        seconds = min(seconds, COMPLETING - START)
    clock, failed = Clock(seconds), 0
    for done, run in enumerate(runs):
        if run[:2] != runs[done - 1][:2]:  # another way or shape
            torch.compiler.reset()  # it keeps few versions of a function
        row: Row = {"what": "block", "way": run.way, "width": run.shape.width}
        row |= {"tokens": run.tokens, "checkpointed": run.checkpointed}
        failed += attempt(path, row, partial(timed, run, clock, len(runs) - done))
    if failed:
        raise RuntimeError(f"{failed} of {len(runs)} runs failed")


def timed(run: Run, clock: Clock, left: int) -> list[Row]:
    """Its row, also if it finds no memory, in its share of the time that is left."""
    return [tried(run, partial(rate, clock, left))]


def complete(runs: list[Run], earlier: Row) -> dict[Run, Row]:
    """Rows of a record of this GPU and torch that can stay, by run; none if it lacks nothing."""
    rows = earlier.get("rows", ())
    where: Row = next((row for row in rows if row["section"] == "environment"), {})
    here = environment.describe()
    if any(where.get(key) != here[key] for key in ("gpus", "torch")):
        return {}
    known = {
        (row["way"], row["width"], row["tokens"], row["checkpointed"]): row
        for row in rows
        if "tflops" in row or "out_of_memory" in row
    }
    kept = {}
    for run in runs:
        if row := known.get((run.way, run.shape.width, run.tokens, run.checkpointed)):
            kept[run] = {"date": earlier["date"], **row}
    return kept if len(kept) < len(runs) else {}


def most_wanted(run: Run) -> tuple[bool, int, int, bool]:
    """A place in the order of runs: those that a page shows come first."""
    width = run.shape.width
    return run.checkpointed, WAYS.index(run.way), width, run.tokens != jobs.SEQUENCE


def rate(clock: Clock, parts: int, run: Run) -> Row:
    """Operations per second within a share of the time: of all, of matrices and of attention."""
    seconds = clock.left() / parts / 2
    whole = times(run, seconds)
    with patch.object(models, "scaled_dot_product_attention", summed):
        without = times(run, seconds)
    took, rest = (sum(each[part][1] for part in PARTS[:2]) for each in (whole, without))
    sizes, gpu, passes = run.shape.sizes(run.tokens), accelerator(), 3 + run.checkpointed
    attention = passes * sizes.attention
    matrices = passes * (sizes.operations - sizes.head) - attention
    speed = attention / (took - rest) if took > rest else 0.0  # too short to be seen
    return {
        "ms": {part: turns.milliseconds(whole[part]) for part in PARTS},
        "without_attention_ms": {part: turns.milliseconds(without[part]) for part in PARTS},
        "tflops": turns.digits(1e-12 * (matrices + attention) / took),
        "matrices_tflops": turns.digits(1e-12 * matrices / rest),
        "attention_tflops": turns.digits(1e-12 * speed),
        "attention": turns.digits(speed * rest / matrices),
        "planned_tflops": turns.digits(1e-12 * gpu.rate(run.shape.width)),
        "planned_attention": gpu.attention,
    }


def times(run: Run, seconds: float) -> dict[str, list[float]]:
    """Quartiles of each part of a step, in about so many seconds."""
    parts = parts_of(run)
    turns.in_order(parts, 1)  # compiles, and lays out the optimizer's state
    trial = turns.in_order(parts, 1).intervals.values()
    rounds = int(seconds / sum(end - start for ((start, end),) in trial))
    return turns.quartiles([turns.in_order(parts, max(LEAST, min(MOST, rounds)))])


def summed(query: Tensor, key: Tensor, value: Tensor, **_: bool) -> Tensor:
    """Sum of each query, its key and its value, in attention's shape."""
    groups = query.unflatten(1, (key.shape[1], -1))
    return (groups + (key + value).unsqueeze(2)).flatten(1, 2)


def parts_of(run: Run) -> dict[str, turns.Call]:
    """Parts of a step of one block, to be called in this order."""
    device, half = minidist.device(), run.way.startswith("bf16")
    dtype = torch.bfloat16 if half else torch.float32
    with device:
        block: Any = block_of(run.shape, checkpointed=False).to(dtype)
        x, gradient = torch.randn(2, 1, run.tokens, run.shape.width, dtype=dtype).unbind()
    x.requires_grad_()
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-4, fused=True)
    if "compiled" in run.way:  # once for all lengths; a CPU may have no compiler
        backend = "inductor" if device.type == "cuda" else "eager"
        block = torch.compile(block, dynamic=True, backend=backend)
    if run.checkpointed:
        block = partial(checkpoint, block, use_reentrant=False)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None

    return {**passes(block, x, gradient, half), "update": update}


def passes(block: Any, x: Tensor, gradient: Tensor, half: bool) -> dict[str, turns.Call]:
    """Forward and backward through a block, to be called in turn; under autocast unless `half`."""
    outputs: list[Tensor] = []

    def forward() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=not half):
            outputs.append(block(x))

    def backward() -> None:
        outputs.pop().backward(gradient)

    return {"forward": forward, "backward": backward}
