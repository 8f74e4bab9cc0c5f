"""FSDP's prefetch: what computes and gathers, and what that takes in memory, over the same time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from course.interactive.page import Slider, choice, control
from course.interactive.timeline import Bar, Lane, milliseconds, still
from course.pages.price import step_of
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.models import root
from minidist.formulas.step import units
from minidist.schedule.lanes import Span, busy, end, spans
from minidist.schedule.steps import COMPUTE, NETWORK, sharded

GPUS, TOKENS, UNITS = 128, 2048, 4
AHEAD = {  # units, in forward and in backward
    "no prefetch": (0, 0),
    "in forward": (1, 0),
    "in backward": (0, 1),
    "in both, one unit ahead": (1, 1),
    "in both, two units ahead": (2, 2),
}
BEGIN = "in both, one unit ahead"
LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "gather": "all-gather",
    "scatter": "reduce-scatter",
    "weights": "unsharded weights",
    "gradients": "unsharded gradients",
}
KINDS = ["forward", "backward", "all-gather", "reduce-scatter"]
CLASSES = [*LEGEND][: len(KINDS)]
STEP = 5  # milliseconds, of the slider


def prefetch_slider() -> Slider:
    """The medium model's blocks in four units, and its root, through forward and backward."""
    step = fewer_units()
    records = {name: record(step, ahead) for name, ahead in AHEAD.items()}
    most = max(each.took for each in records.values())
    largest = max(sum(now[1:]) for each in records.values() for now in each.held)
    marks, times = milliseconds(most, 100), [*range(0, int(most) + 2 * STEP, STEP)]
    controls = [
        choice("prefetch", "Prefetch", [*AHEAD], BEGIN),
        control("time", "Time", times, times[len(times) // 2], "{} ms".format),
    ]
    data: dict[str, object] = {"records": {name: [*each] for name, each in records.items()}}
    data |= {"kinds": KINDS, "most": most, "largest": largest, "ticks": marks, "legend": LEGEND}
    blocks = step_of("medium", GPUS, TOKENS).sizes.units
    title = f"{blocks} blocks in {UNITS} units and a root, {TOKENS:,} tokens per GPU"
    shown = records[BEGIN]
    picture = still(_lanes(shown, largest), most, marks, LEGEND, shown.says)
    return Slider("prefetch", title, controls, data, picture)


def fewer_units() -> TrainingStep:
    """A step of the medium job on 16 nodes of H100s, with several blocks in each unit."""
    step = step_of("medium", GPUS, TOKENS)
    blocks = step.sizes.units // UNITS
    sizes = step.sizes._replace(units=UNITS, largest_unit=blocks * step.sizes.largest_unit)
    return replace(step, sizes=sizes)


def lanes(step: TrainingStep, ahead: tuple[int, int]) -> list[Span]:
    """Forward and backward, with so many units gathered before their turn in each."""
    outside, blocks = units(step, "fsdp")
    return spans(sharded(outside, blocks, [*ahead]))


class Held(NamedTuple):
    """From some second on: bytes of unsharded weights, and of unsharded gradients."""

    start: float
    weights: float
    gradients: float


def held(found: Sequence[Span], step: TrainingStep) -> list[Held]:
    """A rank's memory beside its shards, whenever that changes.

    A unit's weights take memory from the beginning of their all-gather until the unit has computed,
    the root's until all of backward has; gradients from the moment at which backward begins to
    make them, until the end of their reduce-scatter.
    """
    changes = list[Held]()
    last = max(span.end for span in found if span.lane == COMPUTE)
    for span in found:
        whole = span.text == "root"
        parameters = root(step.sizes) if whole else step.sizes.largest_unit
        weights, gradients = step.each.compute * parameters, step.each.gradients * parameters
        if span.kind == "all-gather":
            changes.append(Held(span.start, weights, 0))
        elif span.kind == "reduce-scatter":
            changes.append(Held(span.end, 0, -gradients))
        elif span.kind == "backward":
            changes.append(Held(last if whole else span.end, -weights, 0))
            changes.append(Held(span.start, 0, gradients))
        elif not whole:
            changes.append(Held(span.end, -weights, 0))
    states, now = list[Held](), Held(0.0, 0.0, 0.0)
    for start, group in groupby(sorted(changes), key=lambda change: change.start):
        _, weights, gradients = map(sum, zip(*group, strict=True))
        if weights or gradients:
            now = Held(start, now.weights + weights, now.gradients + gradients)
            states.append(now)
    return states


class Record(NamedTuple):
    """A step as a browser draws it, in milliseconds and gigabytes, to the tenth."""

    took: float
    lanes: list[list[float | str]]  #: of GPU and network: start, end, kind, unit of each span
    held: list[list[float]]  #: from when on there are how many GB of weights, and of gradients
    says: str


def record(step: TrainingStep, ahead: tuple[int, int]) -> Record:
    """Forward and backward, with so many units gathered before their turn in each."""
    found = lanes(step, ahead)
    numbers: dict[str, list[float | str]] = {COMPUTE: [], NETWORK: []}
    for span in sorted(found, key=lambda span: span.start):
        times = [round(1e3 * span.start, 1), round(1e3 * span.end, 1)]
        unit = int(span.text) if span.text.isdecimal() else "R"  # the root
        numbers[span.lane] += [*times, KINDS.index(span.kind), unit]
    states, took = held(found, step), end(found)
    now = [[round(1e3 * a, 1), round(w / 1e9, 1), round(g / 1e9, 1)] for a, w, g in states]
    most = max(weights + gradients for _, weights, gradients in states)
    says = (
        f"The step takes {1e3 * took:.0f} ms, {took / busy(found, COMPUTE):.2f} times its compute; "
        f"at most {most / 1e9:.3g} GB are unsharded."
    )
    return Record(round(1e3 * took, 1), [*numbers.values()], now, says)


def _lanes(record: Record, largest: float) -> Iterator[Lane]:
    """The GPU and the network, and below them the memory."""
    for name, numbers in zip(("GPU", "network"), record.lanes, strict=True):
        fours = (numbers[at : at + 4] for at in range(0, len(numbers), 4))
        bars = [Bar(float(a), float(b), CLASSES[int(k)], str(unit)) for a, b, k, unit in fours]
        yield Lane(name, "", bars)
    ends = [*(at for at, *_ in record.held[1:]), record.took]
    bars = []
    for (start, weights, gradients), until in zip(record.held, ends, strict=True):
        low, high = weights / largest, (weights + gradients) / largest
        bars += [Bar(start, until, "weights", low=0, high=low)] if weights else []
        bars += [Bar(start, until, "gradients", low=low, high=high)] if gradients else []
    yield Lane("memory", f"0 to {largest:.3g} GB", bars, "tall")
