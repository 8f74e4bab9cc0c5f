"""FSDP's step on two lanes, a GPU and a network link, each of which does one thing at a time."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from minidist.profiler.spans import Span

Seconds = Callable[[float], float]  # what a collective takes, by its bytes
SHARD, GRADIENT = 2, 4  # bytes per parameter: gathered in bf16, reduced in fp32
PASSES = (("forward", 2), ("backward", 4))  # operations per parameter and token


class Lane(list[Span]):
    """What a GPU or a link does, one thing after another, as spans of time."""

    @property
    def end(self) -> float:
        """When it has done all that it was given."""
        return self[-1].end if self else 0.0

    def do(self, lane: str, name: str, seconds: float, earliest: float) -> float:
        """Do this next, no earlier than that; return when it is done."""
        start = max(self.end, earliest)
        self.append(Span(0, lane, name, start, start + seconds))
        return self.end


def fsdp_step(
    units: Sequence[float],
    tokens: float,
    rate: float,
    gather: Seconds,
    scatter: Seconds,
    *,
    prefetch: bool | tuple[int, int] = True,
    keep: bool = False,
) -> list[Span]:
    """Predict forward and backward, without the optimizer.

    For each unit: gather its weights, and those of the next one with `prefetch`, or of so many in
    forward and in backward; compute once they are there; and in backward send off its gradients.
    `units`: parameters of each, in the order of forward; `gather`, `scatter`: bytes of a unit →
    seconds; `keep`: weights from forward on.
    """
    ahead = prefetch if isinstance(prefetch, tuple) else (prefetch, prefetch)
    gpu, link = Lane(), Lane()
    here: dict[int, float] = {}  # a unit → when its weights have arrived
    places = range(len(units))
    orders = places, places[::-1]
    for (phase, work), order, more in zip(PASSES, orders, ahead, strict=True):
        here = here if keep else {}
        for place, unit in enumerate(order):
            for wanted in order[place : place + 1 + more]:
                if wanted not in here:
                    seconds = gather(SHARD * units[wanted])
                    here[wanted] = link.do("all-gather", f"all-gather {wanted}", seconds, gpu.end)
            seconds = work * tokens * units[unit] / rate
            gpu.do("compute", f"{phase} {unit}", seconds, here[unit])
            if phase == "backward":
                seconds = scatter(GRADIENT * units[unit])
                link.do("reduce-scatter", f"reduce-scatter {unit}", seconds, gpu.end)
    return [*gpu, *link]


class Held(NamedTuple):
    """From some second on: bytes of unsharded weights, and of unsharded gradients."""

    start: float
    weights: float
    gradients: float


def held(spans: Sequence[Span], units: Sequence[float]) -> list[Held]:
    """What a rank holds beside its shards during `fsdp_step`, whenever that changes.

    A unit's weights take memory from the beginning of their all-gather until the unit has computed;
    its gradients from the moment at which backward begins to make them, until the end of their
    reduce-scatter.
    """
    changes = list[Held]()
    for span in spans:
        what, unit = span.name.split()
        weights, gradients = SHARD * units[int(unit)], GRADIENT * units[int(unit)]
        if what == "all-gather":
            changes.append(Held(span.start, weights, 0))
        elif what == "reduce-scatter":
            changes.append(Held(span.end, 0, -gradients))
        else:
            changes.append(Held(span.end, -weights, 0))
            if what == "backward":
                changes.append(Held(span.start, 0, gradients))
    found, now = list[Held](), Held(0.0, 0.0, 0.0)
    for start, group in groupby(sorted(changes), key=lambda change: change.start):
        _, weights, gradients = map(sum, zip(*group, strict=True))
        if weights or gradients:
            now = Held(start, now.weights + weights, now.gradients + gradients)
            found.append(now)
    return found


def took(spans: Sequence[Span]) -> float:
    """Seconds from the beginning to the last end."""
    return max(span.end for span in spans)
