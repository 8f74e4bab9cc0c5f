"""Who holds what through a step under DDP and ZeRO's stages, recorded from `from_scratch`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from course.widgets.frames import Frame, FramesChoice, FramesStepper, Lines, drawing
from course.widgets.recording import Held, Note, Threads, on_threads, strip
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO1, ZeRO2

LAYERS = 2
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
PARTS = ("parameters", "gradients", "optimizer state")
LOOKS = {"held": "in memory", "old": "in memory, out of date", "": "not there"}
STEP = {
    0: "Every rank's optimizer makes the same step on all parameters.",
    1: "Each rank's optimizer steps on the parameters of its own shard. Its copies of the others "
    "are out of date now (dashed).",
    3: "Each rank's optimizer steps on its own shard of the parameters; it holds no others.",
}
STEP[2] = STEP[1]
START = {
    0: "Between steps every rank holds all parameters and all of the optimizer's state.",
    1: "Between steps every rank holds all parameters, but a quarter of the optimizer's state.",
    2: "Between steps nothing differs from stage 1; the step itself will.",
    3: "Between steps every rank holds a quarter of everything.",
}


def zero_stepper() -> FramesChoice:
    """A step of four ranks under each stage: what each of them holds of a model of two layers."""
    several = {}
    for stage, name in enumerate(STAGES):
        notes = on_threads(LAYERS, partial(_wrapped, stage))
        frames = [*_frames(list(zip(*notes, strict=True)), stage)]
        several[(name,)] = FramesStepper(f"One step under {name}", frames, LOOKS)
    return FramesChoice(("Strategy",), several)


def _wrapped(stage: int, net: nn.Sequential, comm: Threads) -> tuple[Any, Any, list[Any]]:
    """The model, its optimizer, and what is sharded of each layer."""
    if stage == 0:
        model = OverlappedDDP(net, comm, bucket_cap_mb=1e-6)  # a bucket for each layer
        return model, torch.optim.Adam(net.parameters()), []
    if stage == 3:
        sharded = FSDP(net, net, comm, prefetch=False)
        return sharded, torch.optim.Adam(sharded.shards), sharded.units
    kind = ZeRO1 if stage == 1 else ZeRO2
    optimizer = kind(net.parameters(), torch.optim.Adam, comm, bucket_cap_mb=1e-6)  # a bucket each
    return net, optimizer, optimizer.flats[::-1]  # the last layer's bucket is the first


def _frames(moments: list[tuple[Note, ...]], stage: int) -> Iterator[Frame]:
    """A frame for each moment; the same has happened on all ranks."""
    old: set[int] = set()  # layers of which a rank has stepped on its own shard only
    phase = ""
    now = moments[0][0]
    for ranks in moments:
        before, now = now, ranks[0]
        phase = _phase(now, before, phase)
        if now.what == "step" and stage in (1, 2):
            old = set(range(LAYERS))
        if now.what == "all_gather":
            old.discard(now.layer)
        if now.what == "forward" and stage < 3 and now.layer < LAYERS - 1:
            continue  # nothing has changed
        rows = {f"rank {r}": _row(each.held, r, stage, old) for r, each in enumerate(ranks)}
        picture = drawing(PARTS, rows, _description(now.held, stage))
        yield Frame(picture, _says(now, stage), phase)


def _phase(now: Note, before: Note, phase: str) -> str:
    if now.what == "start":
        return ""
    if now.what == "gradient" or (phase == "forward" and now.layer == before.layer != -1
                                  and now.what == "all_gather"):  # fmt: skip
        return "backward"
    if now.what in ("step", "end") or phase == "step":
        return "step"
    return phase or "forward"


def _row(held: Held, rank: int, stage: int, old: set[int]) -> list[Lines]:
    state = "all" if stage == 0 else "own"
    looks = [("weights", held.weights), ("gradients", held.gradients)]
    return [
        *([strip(part, how, rank, n in old and part == "weights") for n, how in enumerate(each)]
          for part, each in looks),
        [strip("optimizer", state, rank)] * LAYERS,
    ]  # fmt: skip


def _description(held: Held, stage: int) -> str:
    words = {"all": "unsharded", "own": "one shard on each rank", "": "none"}

    def each(parts: tuple[str, ...]) -> str:
        return ", ".join(f"layer {n + 1} {words[how]}" for n, how in enumerate(parts))

    state = "unsharded" if stage == 0 else "one shard on each rank"
    return (
        f"Parameters: {each(held.weights)}. Gradients: {each(held.gradients)}. "
        f"Optimizer state: {state}."
    )


def _says(now: Note, stage: int) -> str:
    layer = f"layer {now.layer + 1}"
    if now.what == "start":
        return START[stage]
    return {
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
