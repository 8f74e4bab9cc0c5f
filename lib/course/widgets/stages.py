"""Who holds what through a step under DDP and ZeRO's stages, recorded from `from_scratch`."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from course.widgets.frames import Frame, FramesChoice, FramesStepper, Lines, Rows, drawing
from course.widgets.recording import Note, Threads, on_threads, strip
from course.widgets.sliders import STAGES
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO1, ZeRO2

LAYERS = 2
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
        frames = [*_frames(zip(*notes, strict=True), stage)]
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


def _frames(moments: Iterable[tuple[Note, ...]], stage: int) -> Iterator[Frame]:
    """A frame for each moment; the same has happened on all ranks."""
    old: set[int] = set()  # layers of which a rank has stepped on its own shard only
    for ranks in moments:
        now = ranks[0]
        if now.what == "step" and stage in (1, 2):
            old = set(range(LAYERS))
        if now.what == "all_gather":
            old.discard(now.layer)
        if now.what == "forward" and stage < 3 and now.layer < LAYERS - 1:
            continue  # nothing has changed
        rows: Rows = {f"rank {r}": _row(each, r, stage, old) for r, each in enumerate(ranks)}
        picture = drawing(PARTS, rows, _description(now, stage))
        yield Frame(picture, _says(now, stage), now.phase)


def _row(now: Note, rank: int, stage: int, old: set[int]) -> list[Lines]:
    weights = [strip("weights", how, rank, n in old) for n, how in enumerate(now.weights)]
    gradients = [strip("gradients", how, rank) for how in now.gradients]
    return [weights, gradients, [strip("optimizer", "own" if stage else "all", rank)] * LAYERS]


def _description(now: Note, stage: int) -> str:
    words = {"all": "unsharded", "own": "one shard on each rank", "": "none"}

    def each(parts: list[str]) -> str:
        return ", ".join(f"layer {n + 1} {words[how]}" for n, how in enumerate(parts))

    state = "unsharded" if stage == 0 else "one shard on each rank"
    return (
        f"Parameters: {each(now.weights)}. Gradients: {each(now.gradients)}. "
        f"Optimizer state: {state}."
    )


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
