"""Grade a project: which milestones are right, and how fast beside `from_scratch`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import minidist
from course.graders.verdict import Verdict, Wrong, grader
from course.project.milestones import MILESTONES, Milestone
from course.project.models import MODELS
from course.project.parity import check_parity
from course.project.ring import check_ring
from course.project.scores import Cost, build, cost, on_slow_link
from course.sandbox.ranks import IN_ORDER, on_ranks

RANKS = (1, 2, 3, 4)
RING_RANKS = (1, 2, 3, 5)
COST_RANKS = 2
SPARE = 1.15  # of the peak of from_scratch: a thread may free a bucket a moment later
TIMEOUT = 60.0
HINTS = {"did not end": IN_ORDER, "disagree": IN_ORDER}


def found(package: str, file: str, target: str) -> Any:
    """A class of the reader's, imported anew.

    Raises:
        NotImplementedError: there is no such file or class yet.
    """
    importlib.invalidate_caches()
    for name in [each for each in sys.modules if each.split(".")[0] == package]:
        del sys.modules[name]
    try:
        return getattr(importlib.import_module(f"{package}.{file}"), target)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotImplementedError(f"{package}/{file}.py has no {target}") from error


@grader
def ring(package: str) -> str:
    """Grade `ring.py`."""
    found(package, "ring", "all_reduce")
    module = sys.modules[f"{package}.ring"]
    for ranks in RING_RANKS:
        on_ranks(check_ring, ranks, module, timeout=TIMEOUT, hints=HINTS)
    return f"all three collectives, on {', '.join(map(str, RING_RANKS))} ranks."


@grader
def trains(package: str, milestone: Milestone) -> str:
    """Grade a milestone: the training, then what a step sends and holds."""
    kind = found(package, milestone.file, milestone.target)
    for ranks in RANKS:
        on_ranks(_train_each, ranks, milestone, kind, timeout=TIMEOUT, hints=HINTS)
    costs = on_ranks(cost, COST_RANKS, milestone, kind, timeout=TIMEOUT, hints=HINTS)
    _check_cost(costs, milestone)
    return (
        f"trains {len(MODELS)} models on {RANKS[0]} to {RANKS[-1]} ranks as one process does, "
        f"with {costs[0].calls} calls and {costs[0].nbytes:,} bytes a step, the least there is."
    )


def _train_each(milestone: Milestone, kind: type) -> None:
    for name in MODELS:
        check_parity(milestone, kind, name)


def _check_cost(costs: list[Cost], milestone: Milestone) -> None:
    weights = sum(parameter.nbytes for parameter in build().parameters())
    least = milestone.moved * (COST_RANKS - 1) * weights
    sent = sum(each.nbytes for each in costs)
    if sent < least:
        raise Wrong(
            f"The result is right, and {sent:,} of the {least:,} bytes that it takes went through "
            "`comm`. Make its calls, and no others."
        )
    if sent > least:
        raise Wrong(
            f"The result is right, and all {COST_RANKS} ranks together send {sent:,} bytes in a "
            f"step; {least:,} are enough: {milestone.moved} (N - 1) times the model."
        )
    right = reference(milestone)
    if costs[0].calls > right.calls:
        raise Wrong(
            f"The result is right, in {costs[0].calls} calls a step; {right.calls} are enough."
        )
    if costs[0].peak > SPARE * right.peak:
        raise Wrong(
            f"The result is right, and a rank holds {costs[0].peak:,} bytes at the peak of a step; "
            f"{right.peak:,} are enough. What is held longer than it is needed?"
        )


def reference(milestone: Milestone) -> Cost:
    """What a step of `from_scratch` costs on rank 0."""
    kind = found("from_scratch", milestone.file, milestone.target)
    first: Cost = minidist.launch(cost, COST_RANKS, milestone, kind, timeout=TIMEOUT)[0]
    return first


def milliseconds(package: str, milestone: Milestone) -> float:
    """Of a step on the emulated link."""
    kind = found(package, milestone.file, milestone.target)
    seconds = minidist.launch(on_slow_link, COST_RANKS, milestone, kind, timeout=TIMEOUT)
    return 1e3 * float(max(seconds))


def lines(package: str, only: str = "") -> Iterator[str]:
    """The report, as it comes: verdicts, and the time of what is right."""
    if not only or only in "ring":
        yield f"{'ring':20} {ring(package)}"
    for milestone in MILESTONES:
        if only and only not in (milestone.file, milestone.name):
            continue
        verdict: Verdict = trains(package, milestone)
        yield f"{milestone.name:20} {verdict}"
        if verdict:
            mine, theirs = (milliseconds(each, milestone) for each in (package, "from_scratch"))
            yield f"{'':20} {mine:.0f} ms on the emulated link; from_scratch {theirs:.0f} ms"
