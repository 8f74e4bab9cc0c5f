"""FSDP's prefetch: what computes and gathers, and what that takes in memory, over the same time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from course.timing.lanes import GRADIENT, SHARD, fsdp_step, held, took
from course.widgets.page import Slider, choice, control
from course.widgets.timeline import Bar, Lane, milliseconds, still
from minidist.planner.hardware import H100, NETWORK_LATENCY
from minidist.planner.jobs import MEDIUM
from minidist.profiler.spans import Span
from minidist.schedule.algorithms import ring_all_gather, ring_reduce_scatter
from minidist.schedule.cost import Link, price, switch

NODES, TOKENS, UNITS = 16, 2048, 4
UNIT = MEDIUM.units // UNITS * MEDIUM.largest_unit  # parameters
GB = [SHARD * UNIT / 1e9, GRADIENT * UNIT / 1e9]  # of a unit: its weights, its gradients
AHEAD = {  # units, in forward and in backward
    "no prefetch": (0, 0),
    "in forward": (1, 0),
    "in backward": (0, 1),
    "in both, one unit ahead": (1, 1),
    "in both, two units ahead": (2, 2),
    "in both, three units ahead": (3, 3),
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
    """The medium model's blocks in four units, through forward and backward of one step."""
    records = {name: Record.of(step(ahead)) for name, ahead in AHEAD.items()}
    most = max(each.took for each in records.values())
    largest = max(each.peak for each in records.values())
    marks, times = milliseconds(most, 100), [*range(0, int(most) + 2 * STEP, STEP)]
    controls = [
        choice("prefetch", "Prefetch", [*AHEAD], BEGIN),
        control("time", "Time", times, times[len(times) // 2], "{} ms".format),
    ]
    data = {
        "records": {name: [*each] for name, each in records.items()},
        "kinds": KINDS,
        "unit": GB,
        "most": most,
        "largest": largest,
        "ticks": marks,
        "legend": LEGEND,
    }
    title = f"{MEDIUM.units} blocks in {UNITS} units, {TOKENS:,} tokens per GPU"
    shown = records[BEGIN]
    picture = still(_lanes(shown, largest), most, marks, LEGEND, shown.says)
    return Slider("prefetch", title, controls, data, picture)


def step(ahead: tuple[int, int]) -> list[Span]:
    """Forward and backward of the medium model's blocks on 16 nodes of H100s."""
    link = switch(Link(NETWORK_LATENCY, 1 / H100.node_network))  # between nodes
    gather, scatter = (price(half(NODES), link) for half in (ring_all_gather, ring_reduce_scatter))
    rate = H100.rate(MEDIUM.width)
    return fsdp_step([UNIT] * UNITS, TOKENS, rate, gather, scatter, prefetch=ahead)


class Record(NamedTuple):
    """What a browser draws of a step, in milliseconds."""

    took: float
    lanes: list[list[float]]  #: of the GPU and the network: start, end, kind, unit of each span
    held: list[list[float]]  #: from when on the weights and gradients of how many units are there
    says: str

    @property
    def peak(self) -> float:
        """Gigabytes that are unsharded at most."""
        return max(weights * GB[0] + gradients * GB[1] for _, weights, gradients in self.held)

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Record":
        """To the tenth."""
        lanes: list[list[float]] = [[], []]
        for span in sorted(spans, key=lambda span: span.start):
            kind, unit = span.name.split()
            number = KINDS.index(kind)
            lanes[number > 1] += [_tenths(1e3 * span.start), _tenths(1e3 * span.end)]
            lanes[number > 1] += [number, int(unit)]
        now = [
            [_tenths(1e3 * at), round(weights / 1e9 / GB[0]), round(gradients / 1e9 / GB[1])]
            for at, weights, gradients in held(spans, [UNIT] * UNITS)
        ]
        most = max(weights + gradients for _, weights, gradients in held(spans, [UNIT] * UNITS))
        compute = sum(span.end - span.start for span in spans if span.lane == "compute")
        says = (
            f"The step takes {1e3 * took(spans):.0f} ms, {took(spans) / compute:.2f} times its "
            f"compute; at most {most / 1e9:.3g} GB are unsharded."
        )
        return cls(_tenths(1e3 * took(spans)), lanes, now, says)


def _tenths(value: float) -> float:
    return round(value, 1)


def _lanes(record: Record, largest: float) -> Iterator[Lane]:
    """The GPU and the network, and below them the memory."""
    for name, numbers in zip(("GPU", "network"), record.lanes, strict=True):
        spans = [numbers[at : at + 4] for at in range(0, len(numbers), 4)]
        bars = [Bar(start, end, CLASSES[int(k)], f"{unit}") for start, end, k, unit in spans]
        yield Lane(name, "", bars)
    ends = [*(at for at, *_ in record.held[1:]), record.took]
    bars = []
    for (start, units, reduced), end in zip(record.held, ends, strict=True):
        weights, gradients = units * GB[0], reduced * GB[1]
        low, high = weights / largest, (weights + gradients) / largest
        bars += [Bar(start, end, "weights", low=0, high=low)] if weights else []
        bars += [Bar(start, end, "gradients", low=low, high=high)] if gradients else []
    yield Lane("memory", f"0 to {largest:.3g} GB", bars, "tall")
