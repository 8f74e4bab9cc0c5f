"""The book's prices: a question about a job, asked of the formulas, and noted with its answer.

Whatever a page, a lab, a figure, a slider or the README says of seconds, bytes and speed of a job
it asks here, so that a question has one answer wherever it is asked. While the book is built, every
question is noted; `tests/book/test_prices.py` reads the notes.
"""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from course.pages.published import curve
from minidist.formulas import compute, inside, links, refusals
from minidist.formulas import step as formulas
from minidist.formulas.inputs import TrainingStep
from minidist.memory.state import AUTOCAST, MIXED, DtypePolicy, bytes_each
from minidist.planner.hardware import ACCELERATORS, Accelerator
from minidist.planner.jobs import SEQUENCE, SHAPES, sized
from minidist.planner.planner import ROOM
from minidist.planner.sizes import above_zero
from minidist.planner.split import Split, check_split
from minidist.schedule.checks import amount, whole_number

REDUCERS = {"one_reducer": 1, "direct": 0}  # 0: on every rank
POLICIES = {"autocast": AUTOCAST, "bf16": MIXED}
PUBLISHED = {  # published curves of H100s, by how many take part
    8: "h100-1x8-nvls",
    16: "h100-2x8-ib",
    32: "h100-4x8-ib",
    64: "h100-8x8-ib",
}


def ask(
    what: str,
    job: str = "small",
    *,
    gpus: int = 8,
    tokens: int = SEQUENCE,
    strategy: str = "ddp",
    tariff: str = "line rate",
    **how: Any,
) -> float:
    """Answer to a question about a step of a job, in seconds, bytes or tokens per second.

    Args:
        what: "forward", "backward", "update" (seconds of compute, or of memory if that is more),
            "compute" (forward and backward), of which "matrices", "attention" and "head";
            "exposed", "communication", "tensor" (the part of it inside layers), "bubble", "step",
            "sequential"; "tokens_per_second" (of all GPUs), "mfu" (as others publish it: attention
            counts in full, recomputation does not), "peak", "state", "sent", "largest_batch"; of
            memory a part as `formulas.memory` names it, but its "update"; or a collective
            ("all_reduce", "all_gather", "reduce_scatter"), on all gradients or weights at once
            unless `nbytes` says on how many bytes; "send", a message of `nbytes` to another node.
            Without rings and latencies: "all_to_all", of all tokens' numbers between two layers;
            "one_reducer" and "direct", an all-reduce of gradients through one reducer and through
            one on every rank.
        job: "small", "medium" or "large".
        gpus: H100s in nodes of eight, unless `gpu` names or is another.
        tokens: of each replica (a GPU, unless the model is split) and step, in sequences of 8,192
            or in one that is shorter.
        strategy: as `minidist.plan` names it.
        tariff: "line rate", NCCL's cost model; or "published", the measured curve of as many GPUs.
        how: `checkpointing`, `policy` ("autocast" or "bf16"), `bucket_cap_mb`, `sequence`, `gpu`,
            `nbytes`, `over` ("ranks", "node" or "nodes", for a collective), `views`, `fused_loss`,
            `foreach`, `pieces` (in which the loss is computed); of a split model `tensor`,
            `pipeline`, `micro_batches`, `interleaved`.

    Raises ValueError that names the argument, what was expected and what came.
    """
    nbytes, over = how.pop("nbytes", None), how.pop("over", "ranks")
    _refuse(refusals.one_of("strategy", strategy, [*formulas.SENDS]))
    _refuse(refusals.one_of("over", over, ["ranks", "node", "nodes"]))
    if nbytes is not None:
        amount("nbytes", nbytes)
    elif what == "send":
        raise ValueError("nbytes: expected the bytes of a message, got None")
    step = step_of(job, gpus, tokens, tariff, **how)
    if step.curve and (over != "ranks" or strategy == "hsdp"):
        part = f"over {over}" if over != "ranks" else f"of {strategy}"
        raise ValueError(f"tariff: expected 'line rate' for a collective {part}, got 'published'")
    answer = _answer(what, step, strategy, nbytes, over)
    question = {"what": what, "job": job, "gpus": gpus, "tokens": tokens, "strategy": strategy}
    note(question | {"tariff": tariff, "nbytes": nbytes, "over": over} | how, answer)
    return answer


def step_of(
    job: str, gpus: int, tokens: int, tariff: str = "line rate", **how: Any
) -> TrainingStep:
    """The step that a question is about."""
    whole_number("gpus", gpus)
    sequence = how.pop("sequence", min(whole_number("tokens", tokens), SEQUENCE))
    _refuse(refusals.of_job(job, [*SHAPES], gpus, tokens, whole_number("sequence", sequence)))
    name, gpu = how.pop("policy", "autocast"), how.pop("gpu", "H100")
    _refuse(refusals.one_of("policy", name, [*POLICIES]))
    _refuse(refusals.one_of("tariff", tariff, ["line rate", "published"]))
    policy: DtypePolicy = POLICIES[name]
    if not isinstance(gpu, Accelerator):
        _refuse(refusals.one_of("gpu", gpu, [*ACCELERATORS]))
        gpu = ACCELERATORS[gpu]
    _refuse(refusals.share("checkpointing", how.get("checkpointing", 0.0)))
    above_zero("bucket_cap_mb", how.get("bucket_cap_mb", 25))
    each = bytes_each(policy, "adam", how.pop("foreach", True))
    sizes, split = sized(job, sequence), Split(*(how.pop(name, 1) for name in Split._fields))
    sizes = sizes._replace(outputs=sizes.outputs / whole_number("pieces", how.pop("pieces", 1), 1))
    check_split(split, sizes, gpus)
    for unknown in how.keys() - {"checkpointing", "bucket_cap_mb", "views", "fused_loss"}:
        raise ValueError(f"{unknown}: expected none but the options that `ask` names")
    if tariff == "published" and split.ranks > 1:
        raise ValueError("tariff: expected 'line rate' for a split model, got 'published'")
    local, nodes = links.into_nodes(gpus, gpu, split.tensor, split.pipeline)
    return TrainingStep(
        split.part(sizes), gpu, each, local, nodes, tokens // sequence,
        curve=curve_of(gpus) if tariff == "published" else (), limit=ROOM * gpu.memory,
        **split._asdict(), **how,
    )  # fmt: skip


def _refuse(refusal: str) -> None:
    if refusal:
        raise ValueError(refusal)


@cache
def curve_of(gpus: int) -> tuple[tuple[float, float], ...]:
    """The published all-reduce of so many H100s, as (bytes, seconds)."""
    if gpus not in PUBLISHED:
        known = ", ".join(map(str, PUBLISHED))
        raise ValueError(
            f"gpus: expected one of {known}, of which a curve is published, got {gpus}"
        )
    return tuple((size, micro / 1e6) for size, micro in curve(PUBLISHED[gpus])["rows"])


def _answer(what: str, step: TrainingStep, strategy: str, nbytes: float | None, over: str) -> float:
    phases = ("forward", "backward", "update")
    alone = dict(zip(phases, formulas.phases(step, strategy), strict=True))
    if what in alone:
        return alone[what]
    if what in links.HALVES:
        part = "weights" if what == "all_gather" else "gradients"
        size = formulas.nbytes(step, strategy, part) if nbytes is None else nbytes
        return links.collective(step, what, size, over)
    if what == "all_to_all":
        sent = step.batch * step.sizes.tokens * step.sizes.width * step.each.compute
        return links.straight(step, sent if nbytes is None else nbytes, step.ranks)
    if what == "send":
        return links.message(step.gpu, nbytes or 0.0)
    if what in REDUCERS:  # the sums return as the parts came
        size = formulas.nbytes(step, strategy, "gradients") if nbytes is None else nbytes
        return 2 * links.straight(step, size, REDUCERS[what] or step.ranks)
    forecast = formulas.forecast(step, strategy)
    held: dict[str, float] = forecast.pop("memory")
    if what == "state":
        return held["weights"] + held["gradients"] + held["optimizer"]
    found: dict[str, float] = held | compute.compute_parts(step) | forecast
    del found["fits"]
    found |= {"step": found["overlapped"], "tensor": inside.tensor_parallel(step)}
    found["mfu"] = compute.mfu(step, found["step"])
    if what not in found:
        known = ", ".join([*alone, *links.HALVES, "all_to_all", "send", *REDUCERS, "state", *found])
        raise ValueError(f"what: expected one of {known}, got {what!r}")
    return found[what]


def note(question: Mapping[str, Any], answer: float) -> None:
    """Write down a question and its answer, if the book is being built."""
    if folder := os.environ.get("MINIDIST_PRICES"):
        line = {"page": os.environ.get("MINIDIST_PAGE", ""), **question, "answer": answer}
        with Path(folder, f"{os.getpid()}.jsonl").open("a") as notes:
            print(json.dumps(line, default=str), file=notes)
