"""The life of FSDP's units through a step, recorded on one rank of `from_scratch.fsdp`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from course.widgets.frames import Cell, Frame, FramesStepper, Lines, drawing, frames_stepper
from course.widgets.recording import RANKS, Held, Note, Recorder, Threads, network, on_threads
from from_scratch.fsdp import FSDP, Unit

UNITS = 3
RANK = 1  # the one that is shown
LOOKS = {"held": "in memory", "moving": "on its way", "": "not there"}
SAYS = {
    "start": f"Between steps rank {RANK} holds its shard of every unit, and nothing else.",
    "all_gather": "The all-gather of unit {n} begins{why}.",
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
    notes = on_threads(_rank)[RANK]
    title = f"Three units through one step, on rank {RANK} of {RANKS}"
    return frames_stepper(title, _frames(notes), LOOKS)


def _rank(comm: Threads) -> list[Note]:
    net, recorder = network(UNITS), Recorder()
    recorder.watch([*net])
    model = FSDP(net, net, comm)
    optimizer = torch.optim.Adam(model.shards)
    recorder.watch_units(model.units)

    def heard(name: str, output: Tensor, input: Tensor) -> None:
        gathers = name == "all_gather"
        mine = [each.shard if gathers else each.shard.grad for each in model.units]
        recorder.note_about(name, input if gathers else output, mine)

    comm.heard = heard
    optimizer.register_step_post_hook(lambda *_: recorder.note("step"))
    return recorder.second_step(model, optimizer, partial(_held, model))


def _held(model: FSDP) -> Held:
    def weights(unit: Unit) -> str:
        if unit.buffer.untyped_storage().size() == 0:
            return "own"
        return "moving" if unit.gathering else "all"

    def gradients(unit: Unit) -> str:
        full = any(parameter.grad is not None for parameter in unit.parameters)
        return "all" if full else "own" if unit.shard.grad is not None else ""

    return Held(tuple(map(weights, model.units)), tuple(map(gradients, model.units)))


def _frames(notes: list[Note]) -> Iterator[Frame]:
    phase, computed, most = "", -1, 0
    for note in notes:
        weights = list(note.held.weights)
        if note.what == "all_gather":
            weights[note.layer] = "moving"
        if note.what == "gradient" or (note.what == "all_gather" and computed == UNITS - 1):
            phase = "backward"
        elif note.what in ("step", "end"):
            phase = "step"
        elif note.what == "all_gather" and not phase:
            phase = "forward"
        if note.what == "forward":
            computed = note.layer
        most = max(most, UNITS - weights.count("own"))
        ahead = "all" in weights or weights.count("moving") > 1
        why = ", while another unit computes" if ahead else ", and the rank waits for it"
        rows: dict[str, list[Lines | str]] = {
            f"unit {n}": _row(weight, gradient)
            for n, (weight, gradient) in enumerate(zip(weights, note.held.gradients, strict=True))
        }
        held = sum(map(_shards, [*weights, *note.held.gradients]))
        rows["in all"] = [f"{held} shards take memory", ""]
        heads, words = ("weights", "gradients"), _description(weights, note.held.gradients)
        says = SAYS[note.what].format(n=note.layer, why=why, most=most)
        yield Frame(drawing(heads, rows, words), says, phase)


def _row(weights: str, gradients: str) -> list[Lines | str]:
    return [[_strip("weights", weights)], [_strip("gradients", gradients)]]


def _shards(how: str) -> int:
    """How many shards take memory, of a unit's weights or gradients; those on their way do."""
    return {"": 0, "own": 1}.get(how, RANKS)


def _strip(part: str, how: str) -> list[Cell]:
    def look(shard: int) -> str:
        if shard == RANK:
            return "held" if how else ""
        return {"all": "held", "moving": "moving"}.get(how, "")

    return [Cell(part, look(shard), f"{shard}" if look(shard) else "") for shard in range(RANKS)]


def _description(weights: list[str], gradients: tuple[str, ...]) -> str:
    words = {"all": "unsharded", "own": "one shard", "moving": "on their way", "": "none"}
    each = (
        f"Unit {n}: weights {words[weight]}, gradients {words[gradient]}."
        for n, (weight, gradient) in enumerate(zip(weights, gradients, strict=True))
    )
    return " ".join(each)
