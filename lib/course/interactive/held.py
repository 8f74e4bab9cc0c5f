"""Memory through a step: DDP and ZeRO's stages on all ranks, and FSDP's units on one."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing
from course.interactive.recording import RANKS, Note, Recorder
from course.interactive.sliders import STAGES
from from_scratch import Comm
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO1, ZeRO2


def wrapped(
    stage: int, prefetch: bool, net: nn.Sequential, comm: Comm
) -> tuple[Any, Any, list[Any]]:
    """The model, its optimizer, and what is sharded of each layer."""
    if stage == 0:
        model = OverlappedDDP(net, comm, bucket_cap_mb=1e-6)  # a bucket for each layer
        return model, torch.optim.Adam(net.parameters()), []
    if stage == 3:
        sharded = FSDP(net, net, comm, prefetch)
        return sharded, torch.optim.Adam(sharded.shards), sharded.units
    kind = ZeRO1 if stage == 1 else ZeRO2
    optimizer = kind(net.parameters(), torch.optim.Adam, comm, bucket_cap_mb=1e-6)  # a bucket each
    return net, optimizer, optimizer.flats[::-1]  # the last layer's bucket is the first


def strip(part: str, how: str, rank: int, old: bool = False) -> list[Cell]:
    """A cell for each shard of a part, of which a rank holds "all", its "own" or nothing."""
    others = {"all": "old" if old else "held", "moving": "moving"}.get(how, "")
    looks = [("held" if how else "") if shard == rank else others for shard in range(RANKS)]
    return [Cell(part, look, f"{n}" if look else "") for n, look in enumerate(looks)]


# ---- DDP and ZeRO's stages ----

LAYERS = 2
PARTS = ("parameters", "gradients", "optimizer state")
LOOKS = {"held": "in memory", "old": "in memory, out of date", "": "not there"}
OWN = (
    "Each rank's optimizer steps on the parameters of its own shard. Its copies of the others "
    "are out of date now (dashed)."
)
STEP = [
    "Every rank's optimizer makes the same step on all parameters.",
    OWN,
    OWN,
    "Each rank's optimizer steps on its own shard of the parameters; it holds no others.",
]
START = [
    "Between steps every rank holds all parameters and all of the optimizer's state.",
    "Between steps every rank holds all parameters, but a quarter of the optimizer's state.",
    "Between steps nothing differs from stage 1; the step itself will.",
    "Between steps every rank holds a quarter of everything.",
]
ALL_OF = {"all": "unsharded", "own": "one shard on each rank", "": "none"}


def zero_stepper() -> FramesChoice:
    """A step of four ranks under each stage: what each of them holds of a model of two layers."""
    several = {}
    for stage, name in enumerate(STAGES):
        wrap = partial(wrapped, stage, False)
        notes = [Recorder(rank, LAYERS, wrap).second_step() for rank in range(RANKS)]
        frames = [*_of_stage(zip(*notes, strict=True), stage)]
        several[(name,)] = FramesStepper(f"One step under {name}", frames, LOOKS)
    return FramesChoice(("Strategy",), several)


def _of_stage(moments: Iterable[tuple[Note, ...]], stage: int) -> Iterator[Frame]:
    """A frame for each moment; the same has happened on all ranks."""
    old: set[int] = set()  # layers of which a rank has stepped on its own shard only
    state = "own" if stage else "all"
    for ranks in moments:
        now = ranks[0]
        if now.what == "step" and stage in (1, 2):
            old = set(range(LAYERS))
        if now.what == "all_gather":
            old.discard(now.layer)
        if now.what == "forward" and stage < 3 and now.layer < LAYERS - 1:
            continue  # nothing has changed
        rows: Rows = {}
        for rank, each in enumerate(ranks):
            weights = [strip("weights", how, rank, n in old) for n, how in enumerate(each.weights)]
            gradients = [strip("gradients", how, rank) for how in each.gradients]
            rows[f"rank {rank}"] = [weights, gradients, [strip("optimizer", state, rank)] * LAYERS]
        description = (
            f"Parameters: {_by_layer(now.weights)}. Gradients: {_by_layer(now.gradients)}. "
            f"Optimizer state: {ALL_OF[state]}."
        )
        yield Frame(drawing(PARTS, rows, description), _says(now, stage), now.phase)


def _by_layer(parts: list[str]) -> str:
    return ", ".join(f"layer {n} {ALL_OF[how]}" for n, how in enumerate(parts, 1))


def _says(now: Note, stage: int) -> str:
    layer = f"layer {now.layer + 1}"
    return {
        "start": START[stage],
        "forward": "Forward runs through both layers." if stage < 3 else f"Forward of {layer}.",
        "gradient": f"Backward has made the gradient of {layer}, from each rank's own data.",
        "all_reduce": f"An all-reduce averages the gradient of {layer} over the ranks"
        + (", while backward goes on." if now.layer else "."),
        "reduce_scatter": f"A reduce-scatter averages the gradient of {layer}. Each rank keeps "
        "the part that its optimizer needs, and frees the rest.",
        "all_gather": f"An all-gather brings every rank's shard of {layer} to all ranks.",
        "free": f"{layer.capitalize()} has computed: its weights are freed, but for one's own.",
        "step": STEP[stage],
        "end": "The gradients are dropped, and the next step may begin.",
    }[now.what]


# ---- FSDP's units ----

UNITS = 3
RANK = 1  # the one that is shown
SHARDS = {"": 0, "own": 1}  # that take memory; if all are there, or coming, RANKS
LOOKS_OF_UNITS = {"held": "in memory", "moving": "on its way", "": "not there"}
WORDS = {"all": "unsharded", "own": "one shard", "moving": "on their way", "": "none"}
SAYS = {
    "start": f"Between steps rank {RANK} holds its shard of every unit, and nothing else.",
    "all_gather": "The all-gather of unit {n} begins{why}; its own shard stays, beside all four.",
    "forward": "Unit {n} is unsharded, and computes its part of forward.",
    "gradient": "Unit {n} is unsharded again and computes its part of backward: its full gradient "
    "is there.",
    "free": "Unit {n} has computed, so its weights are freed; the shard stays.",
    "reduce_scatter": f"A reduce-scatter averages the gradient of unit {{n}}; rank {RANK} keeps "
    "its shard of it.",
    "step": "The optimizer steps on the shards.",
    "end": "The gradients are dropped. At most {most} units at once were unsharded or coming.",
}


def unit_stepper() -> FramesStepper:
    """The life of three units while FSDP runs a step with prefetch."""
    notes = Recorder(RANK, UNITS, partial(wrapped, 3, True)).second_step()
    title = f"Three units through one step, on rank {RANK} of {RANKS}"
    return FramesStepper(title, [*_of_units(notes)], LOOKS_OF_UNITS)


def _of_units(notes: list[Note]) -> Iterator[Frame]:
    most = 0
    for note in notes:
        weights = list(note.weights)
        if note.what == "all_gather":
            weights[note.layer] = "moving"
        most = max(most, UNITS - weights.count("own"))
        ahead = "all" in weights or weights.count("moving") > 1
        why = ", while another unit computes" if ahead else ", and the rank waits for it"
        rows, words = Rows(), list[str]()
        for n, (weight, gradient) in enumerate(zip(weights, note.gradients, strict=True)):
            strips = [strip("weights", weight, RANK)], [strip("gradients", gradient, RANK)]
            rows[f"unit {n}"] = strips
            words.append(f"Unit {n}: weights {WORDS[weight]}, gradients {WORDS[gradient]}.")
        held = sum(SHARDS.get(how, RANKS) for how in (*weights, *note.gradients))
        held += UNITS - weights.count("own")  # the shard stays beside the gathered weights
        rows["in all"] = [f"{held} shards take memory", ""]
        says = SAYS[note.what].format(n=note.layer, why=why, most=most)
        picture = drawing(("weights", "gradients"), rows, " ".join(words))
        yield Frame(picture, says, note.phase)
