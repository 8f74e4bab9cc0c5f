"""A backward pass whose gradients travel during it or after it, in buckets or one by one.

Also runs in a page: imports nothing but the library's pure modules.
"""

from __future__ import annotations

from minidist.formulas.links import collective
from minidist.formulas.memory import buckets, gradient_bytes
from minidist.formulas.models import tensors
from minidist.formulas.step import gradients_ready, phases
from minidist.schedule.lanes import busy, end, spans
from minidist.schedule.steps import COMPUTE, NETWORK, bucketed

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

    from minidist.formulas.inputs import TrainingStep

WAYS = ["naive", "flat", "bucketed", "overlapped"]


def grouped(step: TrainingStep, way: str) -> list[list[int]]:
    """Indexes of the gradients that travel together: each alone, all, or as DDP buckets them."""
    count = len(tensors(step.sizes))
    backwards = [count - 1 - place for place in range(count)]
    if way == "naive":
        return [[index] for index in backwards]
    return [backwards] if way == "flat" else buckets(step)


def backward(step: TrainingStep, groups: list[list[int]], early: bool) -> dict[str, Any]:
    """Backward of a step under DDP, with such groups of gradients.

    Returns `backward` (seconds that it computes), `exposed` (seconds after it until the last
    all-reduce has ended), `nbytes` of each group, `full` (when backward has made it), `travels`
    (start and end of each all-reduce), and `hidden`, the share of them that is not exposed.
    """
    sizes, whole = gradient_bytes(step), phases(step, "ddp")[1]
    nbytes = [sum([sizes[index] for index in group]) for group in groups]
    seconds = [collective(step, "all_reduce", size) for size in nbytes]
    made = gradients_ready(step, "ddp")
    found = spans(bucketed(made, groups, seconds, "all-reduce", early))
    exposed, takes = max(0.0, end(found) - whole), busy(found, NETWORK)
    return {
        "backward": whole,
        "exposed": exposed,
        "nbytes": nbytes,
        "full": [span.end for span in found if span.lane == COMPUTE],
        "travels": [[span.start, span.end] for span in found if span.lane == NETWORK],
        "hidden": 1 - exposed / takes if takes > 0 else 1.0,
    }


def by_way(step: TrainingStep, way: str) -> dict[str, Any]:
    """Backward under one of `WAYS`: only "overlapped" sends before it has ended."""
    return backward(step, grouped(step, way), way == "overlapped")
