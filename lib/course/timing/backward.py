"""A backward pass whose gradients travel during it or after it, in buckets or one by one.

Also runs in a page: imports nothing but the library's pure modules.
"""

from __future__ import annotations

from minidist.formulas.links import collective
from minidist.formulas.memory import buckets, gradient_bytes
from minidist.formulas.models import tensors
from minidist.formulas.step import gradients_ready, phases
from minidist.schedule.lanes import end, spans
from minidist.schedule.steps import bucketed

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
    all-reduce has ended), `made` (when each gradient is), `nbytes` of each group, and the `spans`,
    backward's pieces first.
    """
    sizes, whole = gradient_bytes(step), phases(step, "ddp")[1]
    made = gradients_ready(step, "ddp")
    nbytes = [sum([sizes[index] for index in group]) for group in groups]
    seconds = [collective(step, "all_reduce", size) for size in nbytes]
    found = spans(bucketed(made, groups, seconds, "all-reduce", early))
    exposed = max(0.0, end(found) - whole)
    return {"backward": whole, "exposed": exposed, "made": made, "nbytes": nbytes, "spans": found}


def by_way(step: TrainingStep, way: str) -> dict[str, Any]:
    """Backward under one of `WAYS`: only "overlapped" sends before it has ended."""
    return backward(step, grouped(step, way), way == "overlapped")
