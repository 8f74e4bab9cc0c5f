"""Buckets that fill and leave during backward, from the simulation that the sliders show too."""

from collections.abc import Iterator
from itertools import product

from course.widgets.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing
from course.widgets.overlap import PER_TOKEN, TOKENS, Backward, backward
from course.widgets.page import nbytes_text
from minidist.parallel.sharding.partition import MIB
from minidist.planner.hardware import H100
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.cost import Link, price, switch

LAYERS, WIDTH, RANKS = 6, 2048, 16
LINK = Link(10e-6, 1 / H100.network)
CAPS = (25, 10, 100)  # MiB
LOOKS = {"held": "ready", "moving": "on the link", "done": "averaged", "": "not there yet"}
WAYS = {"as soon as it is full": "overlapped", "when backward is over": "bucketed"}


def bucket_stepper() -> FramesChoice:
    """Six layers' gradients in buckets of several sizes, that leave during backward or after it.

    The model is six linear layers of 2,048 x 2,048 in float32; 16 ranks, each an H100 on a
    400 Gb/s link.
    """
    sizes = [4 * WIDTH * WIDTH] * LAYERS
    ring = price(ring_all_reduce(RANKS), switch(LINK))
    several = {}
    for (way, strategy), cap in product(WAYS.items(), CAPS):
        done = backward(sizes, TOKENS * PER_TOKEN, strategy, cap * MIB, ring)
        title = f"Buckets of {cap} MiB through backward, {RANKS} ranks"
        several[way, f"{cap} MiB"] = FramesStepper(title, [*_frames(done, sizes)], LOOKS)
    return FramesChoice(("A bucket leaves", "Cap"), several)


def _frames(done: Backward, sizes: list[int]) -> Iterator[Frame]:
    moments = sorted({0.0, *done.ready, *(time for travel in done.travels for time in travel)})
    for moment in moments:
        phase = "backward" if moment <= done.end else "waiting"
        picture = drawing(["gradients of layers", "all-reduce"], *_state(done, sizes, moment))
        yield Frame(picture, _says(done, moment), phase if moment else "")


def _state(done: Backward, sizes: list[int], now: float) -> tuple[Rows, str]:
    """The rows at a moment, and the same in words."""
    rows: Rows = {}
    for number, (bucket, (start, end)) in enumerate(zip(done.buckets, done.travels, strict=True)):
        full = all(done.ready[index] <= now for index in bucket)
        size = nbytes_text(sum(sizes[index] for index in bucket))
        if now >= end:
            look, note = "done", "averaged ✓"
        elif now >= start:
            look, note = "moving", f"{size} on the link"
        else:
            look, note = "held", f"{size}, full, waits" if full else "filling"
        there = [(i, look if done.ready[i] <= now else "") for i in bucket]
        cells = [Cell("gradients", how, f"{i + 1}") for i, how in there]
        rows[f"bucket {number}"] = [[cells], note]
    said = (f"{name}: {note}." for name, (_, note) in rows.items())
    return rows, " ".join(said)


def _says(done: Backward, now: float) -> str:
    if now == 0:
        return "Backward begins. It makes the gradients of the last layer first."
    made = [layer for layer, ready in enumerate(done.ready, 1) if ready == now]
    said = [f"the gradient of layer {layer} is there" for layer in made]
    if now == done.end:
        said.append("backward is over")
    for number, (start, end) in enumerate(done.travels):
        if end == now:
            said.append(f"bucket {number} is averaged")
        if start == now:
            said.append(f"bucket {number} leaves")
    if now == done.travels[-1][1]:
        said.append(f"the optimizer can step, {1e3 * done.exposed:.2f} ms after backward")
    return f"{1e3 * now:.2f} ms: {', '.join(said)}."
