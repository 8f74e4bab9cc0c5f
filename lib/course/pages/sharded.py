"""Rows of the tables and bars about memory and FSDP: strategies, and published runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from course.pages.price import ask, note, step_of
from minidist.formulas import muon, nccl
from minidist.formulas.compute import rate
from minidist.formulas.links import into_nodes
from minidist.formulas.memory import memory
from minidist.formulas.step import tokens_to_hide, units
from minidist.planner.hardware import H100, Accelerator
from minidist.planner.jobs import MEDIUM, matrices
from minidist.schedule.lanes import busy, end, spans
from minidist.schedule.steps import COMPUTE, sharded

MOST = 4  # sequences of a micro-batch, from which on more of them change little
RUNGS = {  # from most memory to least: ZeRO's stages, and the ladder of PyTorch
    "DDP": "ddp",
    "ZeRO-1": "zero1",
    "ZeRO-2": "zero2",
    "FSDP, weights kept": "fsdp_kept",
    "FSDP": "fsdp",
}
RUNGS_OF_ZERO = "ddp", "zero1", "zero2", "fsdp", "fsdp_kept"


def counted_elsewhere() -> tuple[list[str], list[list[Any]]]:
    """Head and rows of a table: bytes per parameter that others count, and of what."""
    counts = {
        "all in bf16": (2, 2, 0, 4, 0),
        "gradients left out": (2, 0, 0, 8, 0),
        "our state": (4, 4, 0, 8, 0),
        "Megatron's state": (2, 4, 4, 8, 0),
        "fp32 gradients beside bf16": (2, 6, 4, 8, 0),
        "our peak": (4, 4, 0, 8, 4),
        "our peak, DDP": (4, 4, 0, 8, 8),
    }
    parts = ["weights", "gradients", "master", "moments", "other", "total"]
    rows = [[name, *each, sum(each)] for name, each in counts.items()]
    return ["counted", *parts], rows


def on_each_rung(
    job: str, gpus: int, tokens: int
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """GB of a rank by part and its peak, for each of `RUNGS`, with a checkpoint at every block."""
    bars, peaks = {}, {}
    for name, strategy in RUNGS.items():
        step = step_of(job, gpus, tokens, checkpointing=1.0)
        own = memory(step, strategy)
        parts = {"parameters": own["weights"], "gradients": own["gradients"]}
        parts |= {"optimizer state": own["optimizer"], "activations": own["activations"]}
        brief = own["buckets"] + max(own["begins"], own["ends"], own["update"])
        parts["buckets, copies, units, temporaries"] = brief
        bars[name] = {part: nbytes / 1e9 for part, nbytes in parts.items()}
        how: Any = {"gpus": gpus, "tokens": tokens, "strategy": strategy}
        peaks[name] = ask("peak", job, checkpointing=1.0, **how) / 1e9
    return bars, peaks


def ddp_beside_fsdp(record: Mapping[str, Any]) -> list[list[int | float | str]]:
    """Rows of `ddp_fsdp_zero`: millions of parameters, ms of a step, and GiB at the peak.

    Both are given under DDP and FSDP; of a run that did not fit they are "".
    """
    runs = {(row[1], row[0]): row[-3:] for row in record["sizes_8_gpus"]}
    rows = []
    for parameters in sorted({parameters for parameters, _ in runs}):
        pair = [runs[parameters, way] for way in ("ddp", "fsdp")]
        steps = [round(ms) if fits else "" for fits, ms, _ in pair]
        peaks = [mebibytes / 1024 if fits else "" for fits, _, mebibytes in pair]
        rows.append([round(parameters / 1e6), *steps, *peaks])
    return rows


def what_fits(job: str, gpus: int) -> dict[tuple[str, bool], tuple[int, int]]:
    """(strategy, recomputes activations) → sequences that fit a GPU, and tokens/s of each GPU.

    The speed is predicted with as many sequences as fit, but no more than `MOST`; 0 if none does.
    """
    found = {}
    for recompute, name in product((True, False), ("ddp", "fsdp_kept", "fsdp")):
        how: Any = {"gpus": gpus, "strategy": name, "checkpointing": float(recompute)}
        most = int(ask("largest_batch", job, **how))
        sequences = max(1, min(most, MOST))
        speed = ask("tokens_per_second", job, tokens=8192 * sequences, **how) / gpus
        found[name, recompute] = most, round(speed) if most else 0
    return found


def rungs_of(
    job: str, sizes: tuple[int, ...], room: float
) -> dict[tuple[str, bool], tuple[list[float], list[float]]]:
    """(strategy, recomputes activations) → GB at the peak on each of `sizes` GPUs, and seconds.

    The seconds are those of compute, what is exposed, and the step, on the most GPUs; none are
    given if the peak does not fit into `room` GB there.
    """
    found = {}
    ways = [(each, True) for each in RUNGS_OF_ZERO] + [(each, False) for each in RUNGS_OF_ZERO[2:]]
    for strategy, recompute in ways:
        how: Any = {"strategy": strategy, "checkpointing": float(recompute)}
        peaks = [ask("peak", job, gpus=gpus, **how) / 1e9 for gpus in sizes]
        what = ("compute", "exposed", "step") if peaks[-1] < room else ()
        found[strategy, recompute] = peaks, [ask(one, job, gpus=sizes[-1], **how) for one in what]
    return found


def muon_beside_adamw(job: str, gpus: int) -> dict[str, list[float]]:
    """What updating the matrices of a job's blocks costs each GPU, or the busiest.

    By AdamW, by `minidist.Muon`, and by `torch.optim.Muon` on DTensors.
    """
    shapes, step = matrices(job), step_of(job, gpus, 8192)
    work = [muon.newton_schulz(*shape) for shape in shapes]
    most, speed = muon.most_owned(shapes, work, gpus), rate(step.gpu, step.sizes.width)
    operations, sent = muon.by_dtensors(shapes, gpus)
    count = sum(rows * columns for rows, columns in shapes) / gpus
    found = {
        "state": [8 * count, 4 * count, 4 * count],
        "sent": [0.0, muon.sent(shapes, gpus), sent],
        "held": [4 * count, muon.held(shapes, gpus)],
        "products": [0.0, most / speed, operations / speed],
        "FLOPs": [0.0, most],
    }
    optimizers = "adamw", "muon", "muon on DTensors"
    for what, answers in found.items():
        for optimizer, answer in zip(optimizers, answers, strict=False):
            question = {"what": f"{what} of the update", "job": job, "gpus": gpus}
            note(question | {"optimizer": optimizer}, answer)
    return found


def muon_rows(update: Mapping[str, Sequence[float]]) -> list[list[Any]]:
    """Rows of a table of what `muon_beside_adamw` has found, in GB and milliseconds."""
    names = {
        "state": ("optimizer state, GB", 1e-9),
        "sent": ("sent to update, GB", 1e-9),
        "held": ("held while updating, GB", 1e-9),
        "products": ("matrix products, ms", 1e3),
    }
    rows = [[name, *(each * unit for each in update[what])] for what, (name, unit) in names.items()]
    return [[*row, *["–"] * (4 - len(row))] for row in rows]


# ---- FSDP's units: the medium job on 128 GPUs ----


def in_units(blocks: int, ahead: int, tokens: int = 2048) -> float:
    """Seconds of forward and backward under FSDP, over those of their compute.

    `blocks`: in a unit; `ahead`: units that are gathered before their turn.
    """
    step = step_of("medium", 128, tokens)
    sizes = step.sizes._replace(
        units=step.sizes.units // blocks, largest_unit=blocks * step.sizes.largest_unit
    )
    found = spans(sharded(*units(replace(step, sizes=sizes), "fsdp"), [ahead, ahead]))
    question = {"what": "forward and backward", "job": "medium", "gpus": 128, "tokens": tokens}
    note(question | {"blocks": blocks, "ahead": ahead}, end(found))
    return end(found) / busy(found, COMPUTE)


def block_forward(tokens: int) -> float:
    """Seconds of a block's forward."""
    _, (block, *_) = units(step_of("medium", 128, tokens), "fsdp")
    note({"what": "a block's forward", "job": "medium", "tokens": tokens}, block.forward)
    return block.forward


def gather(gpus: int) -> float:
    """Seconds of the all-gather of a block, in bf16."""
    nbytes = 2 * MEDIUM.largest_unit
    return ask("all_gather", "medium", gpus=gpus, strategy="fsdp", nbytes=nbytes)


def latency(
    gpus: int, collective: str = "all_gather", each: int = 2, gpu: Accelerator = H100
) -> float:
    """Seconds of a block's collective that its bytes do not take, with `each` per parameter."""
    local, nodes = into_nodes(gpus, gpu)
    choice = nccl.cheapest(collective, each * MEDIUM.largest_unit, nodes, local, gpu)
    return float(choice["latency"])


def hidden_from(gpus: int, waiting: bool = True, gpu: Accelerator = H100) -> tuple[float, float]:
    """Tokens per GPU with which forward and backward hide a block's collectives.

    `waiting`: whether latency counts, or bandwidth alone.
    """
    speed, size = rate(gpu, MEDIUM.width), MEDIUM.largest_unit
    local, nodes = into_nodes(gpus, gpu)
    if not waiting:
        how, there = (speed, nccl.line_rate(nodes, local, gpu), 0, size), (gpus - 1) / gpus
        return tokens_to_hide(2 * there, 2, *how), tokens_to_hide(6 * there, 4, *how)
    gathers = nccl.seconds("all_gather", 2 * size, nodes, local, gpu)
    reduces = nccl.seconds("reduce_scatter", 4 * size, nodes, local, gpu)
    both = gathers + reduces
    return tokens_to_hide(0, 2, speed, 1, gathers, size), tokens_to_hide(0, 4, speed, 1, both, size)
