"""The life of FSDP's units through a step, recorded on one rank of `from_scratch.fsdp`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from course.widgets.frames import Frame, FramesStepper, Rows, drawing
from course.widgets.recording import RANKS, Note, Threads, on_threads, strip
from from_scratch.fsdp import FSDP

UNITS = 3
RANK = 1  # the one that is shown
SHARDS = {"": 0, "own": 1}  # that take memory; if all are there, or coming, RANKS
LOOKS = {"held": "in memory", "moving": "on its way", "": "not there"}
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
    """What a rank holds of three units while FSDP runs a step with prefetch."""
    notes = on_threads(UNITS, _wrapped)[RANK]
    title = f"Three units through one step, on rank {RANK} of {RANKS}"
    return FramesStepper(title, [*_frames(notes)], LOOKS)


def _wrapped(net: nn.Sequential, comm: Threads) -> tuple[Any, Any, list[Any]]:
    model = FSDP(net, net, comm)
    return model, torch.optim.Adam(model.shards), model.units


def _frames(notes: list[Note]) -> Iterator[Frame]:
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
