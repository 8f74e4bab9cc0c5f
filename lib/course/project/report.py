"""Grade a project: which milestones are right, and what they cost beside others' code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from IPython.display import Markdown

import minidist
from course.graders.verdict import Grader, Verdict, Wrong
from course.pages.table import table
from course.project.milestones import MILESTONES, Milestone, by_name
from course.project.models import MODELS
from course.project.parity import check_parity
from course.project.peers import PEERS
from course.project.ring import check_ring
from course.project.scores import Cost, build, cost, cost_and_seconds, on_slow_link
from course.sandbox.ranks import IN_ORDER, on_ranks

RANKS = (1, 2, 3, 4)
RING_RANKS = (1, 2, 3, 5)
COST_RANKS = 2
SPARE = 1.15  # of the peak of from_scratch: a thread may free a bucket a moment later
TIMEOUT = 60.0
HINTS = {"did not end": IN_ORDER, "disagree": IN_ORDER}


def grade(name: str, package: str = "mine") -> Verdict:
    """Grade "ring", or the milestone of this name, as it stands in a package."""
    return ring(package) if name == "ring" else trains(package, by_name(name))


def load(package: str, file: str) -> ModuleType:
    """A file of the project, imported anew."""
    importlib.invalidate_caches()
    for name in [each for each in sys.modules if each.split(".")[0] == package]:
        del sys.modules[name]
    return importlib.import_module(f"{package}.{file}")


def mine(file: str) -> ModuleType:
    """The reader's own file, or where there is none, as in the book, that of `from_scratch`."""
    return load("mine" if importlib.util.find_spec("mine") else "from_scratch", file)


def found(package: str, file: str, target: str) -> Any:
    """A class of the project.

    Raises:
        NotImplementedError: there is no such file or class yet.
    """
    try:
        return getattr(load(package, file), target)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotImplementedError(f"{package}/{file}.py has no {target}") from error


@Grader
def ring(package: str) -> str:
    """Grade `ring.py`."""
    found(package, "ring", "all_reduce")
    module = load(package, "ring")
    for ranks in RING_RANKS:
        on_ranks(check_ring, ranks, module, timeout=TIMEOUT, hints=HINTS)
    return f"all three collectives, on {', '.join(map(str, RING_RANKS))} ranks."


@Grader
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


def scoreboard(name: str, package: str = "mine") -> Markdown:
    """What a step of a milestone costs, in this package, in `from_scratch` and in libraries."""
    milestone = by_name(name)
    target = milestone.file, milestone.target
    ways = {"yourself": (milestone, found(package, *target))} if package != "from_scratch" else {}
    ways["from_scratch"] = milestone, found("from_scratch", *target)
    for library, train in PEERS[milestone.file].items():
        ways[library] = replace(milestone, train=train), None
    rows: list[list[object]] = []
    for who, (how, kind) in ways.items():
        of_ranks = minidist.launch(cost_and_seconds, COST_RANKS, how, kind, timeout=TIMEOUT)
        (calls, nbytes, peak), _ = of_ranks[0]
        rows.append([who, calls, nbytes, peak, 1e3 * max(seconds for _, seconds in of_ranks)])
    return table(["code of", "calls", "bytes sent", "bytes at the peak", "ms on the link"], rows)


def lines(package: str, only: str = "") -> Iterator[str]:
    """The report, as it comes: a verdict for each milestone, or for those of one file."""
    if only in ("", "ring"):
        yield f"{'ring':20} {ring(package)}"
    for milestone in MILESTONES:
        if only in ("", milestone.file, milestone.name):
            verdict: Verdict = trains(package, milestone)
            yield f"{milestone.name:20} {verdict}"
            if verdict:
                yield f"{'':20} {times(package, milestone)}"


def times(package: str, milestone: Milestone) -> str:
    """The time of a step on the emulated link, beside that of `from_scratch`."""
    took = []
    for each in (package, "from_scratch"):
        kind = found(each, milestone.file, milestone.target)
        seconds = minidist.launch(on_slow_link, COST_RANKS, milestone, kind, timeout=TIMEOUT)
        took.append(1e3 * max(seconds))
    return f"{took[0]:.0f} ms on the emulated link; from_scratch {took[1]:.0f} ms"
