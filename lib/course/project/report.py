"""Grade a project: which milestones are right, and what they cost beside others' code."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.display import Markdown
from tqdm import tqdm  # type: ignore[import-untyped]

import minidist
from course.pages.table import table
from course.project.milestones import MILESTONES, Milestone, by_name
from course.project.models import EITHER_ORDER, MODELS
from course.project.parity import check_parity
from course.project.peers import PEERS
from course.project.ring import check_order, check_ring
from course.project.scores import (
    RING_BYTES,
    RING_LINK,
    Cost,
    build,
    cost,
    cost_and_seconds,
    ring_cost,
)
from course.sandbox.forbidden import without_wrappers
from course.verdict import Grader, Verdict, Wrong, on_ranks

RANKS = (1, 2, 3, 4)
RING_RANKS = (1, 2, 3, 5)
COST_RANKS, RING_COST_RANKS = 2, 4
SPARE = 1.1  # of the peak of from_scratch: buckets may be cut a little differently
ALMOST = 0.75  # of the overlaps of from_scratch: there is more than one way
TIMEOUT = 30.0
waiting = partial(tqdm, leave=False)  # a bar on stderr: a grader catches what is printed
HINTS = {"NoneType": " Is it the gradient of a frozen parameter?"}
HEAD = ["code of", "calls", "messages", "bytes sent", "bytes at the peak", "ms on the link"]
RING_HEAD = ["code of", "messages", "bytes sent", "ms on the link"]


def grade(name: str, package: str = "mine") -> Verdict:
    """Grade "ring", or the milestone of this name, as it stands in a package."""
    return ring(package) if name == "ring" else trains(package, by_name(name))


def load(package: str, file: str) -> ModuleType:
    """A file of the project; the reader's own are imported anew."""
    if package != "from_scratch":
        importlib.invalidate_caches()
        for name in [each for each in sys.modules if each.split(".")[0] == package]:
            del sys.modules[name]
    return importlib.import_module(f"{package}.{file}")


def mine(file: str) -> ModuleType:
    """The reader's own file, or where there is none, as in the book, that of `from_scratch`."""
    return load("mine" if importlib.util.find_spec("mine") else "from_scratch", file)


def found(package: str, file: str, target: str) -> Any:
    """A class or function of the project.

    Raises:
        NotImplementedError: there is no such file or class yet.
    """
    try:
        return getattr(load(package, file), target)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotImplementedError(f"there is no {target} in {package}/{file}.py.") from error


@Grader
def ring(package: str) -> str:
    """Grade `ring.py`: the results, then what each rank sends."""
    found(package, "ring", "all_reduce")
    module = load(package, "ring")
    for ranks in waiting(RING_RANKS, "ring, on 1 to 5 ranks"):
        orders = on_ranks(check_ring, ranks, module, timeout=TIMEOUT, hints=HINTS)
        for collective in orders[0]:
            check_order(collective, [of_rank[collective] for of_rank in orders])
    return (
        f"for all three collectives, on {', '.join(map(str, RING_RANKS))} ranks, in N - 1 messages "
        "a phase, of a chunk each: fewer bytes are not possible."
    )


@Grader
def trains(package: str, milestone: Milestone) -> str:
    """Grade a milestone: the training, then what a step sends, holds, and hides."""
    kind = found(package, milestone.file, milestone.target)
    for ranks in waiting(RANKS, f"{milestone.name}, on 1 to 4 ranks"):
        on_ranks(_train_each, ranks, milestone, kind, timeout=TIMEOUT, hints=HINTS)
    costs = on_ranks(cost, COST_RANKS, milestone, kind, timeout=TIMEOUT, hints=HINTS)
    _check_cost(costs, milestone)
    tried, calls = len(models_of(milestone)), costs[0].calls
    return (
        f"It trains {tried} models on {RANKS[0]} to {RANKS[-1]} ranks as one process does, "
        f"with {calls} call{'s' * (calls > 1)} and {costs[0].nbytes:,} bytes a step, the least "
        "there is."
    )


def models_of(milestone: Milestone) -> list[str]:
    """What a milestone must train; in ZeRO and FSDP all ranks must reach units in one order."""
    return [name for name in MODELS if milestone.file == "ddp" or name != EITHER_ORDER]


def _train_each(milestone: Milestone, kind: type) -> None:
    with without_wrappers("the calls of `comm`"):
        for name in models_of(milestone):
            check_parity(milestone, kind, name)


def _check_cost(costs: list[Cost], milestone: Milestone) -> None:
    least = least_bytes(milestone)
    sent = sum(each.nbytes for each in costs)
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
    if costs[0].overlaps < ALMOST * right.overlaps:
        raise Wrong(
            f"The result is right, and {costs[0].overlaps} times in a step a call is on its way "
            f"while a layer computes or another call is made; it could be {right.overlaps} times. "
            "Make each call as early as you can, with async_op=True, and wait as late as you can."
        )
    if sent < least:
        raise Wrong(
            f"The result is right, and {sent:,} of the {least:,} bytes that it takes went through "
            "`comm`. Make its calls, and no others."
        )


def least_bytes(milestone: Milestone) -> int:
    """That all ranks together must send in a step: each phase moves (N - 1) times the model."""
    weights = sum(parameter.nbytes for parameter in build().parameters())
    return milestone.moved * (COST_RANKS - 1) * weights


@cache
def reference(milestone: Milestone) -> Cost:
    """What a step of `from_scratch` costs on rank 0."""
    kind = found("from_scratch", milestone.file, milestone.target)
    first: Cost = minidist.launch(cost, COST_RANKS, milestone, kind, timeout=TIMEOUT)[0]
    return first


# ---- beside others' code ----


def scoreboard(name: str, package: str = "mine") -> Markdown:
    """What a step of a milestone costs, in this package, in `from_scratch` and in libraries.

    Of "ring": an all-reduce of 1 MiB on four ranks.
    """
    if name == "ring":
        return table(RING_HEAD, _ring_rows(package))
    return table(HEAD, _rows(by_name(name), package))


def _packages(package: str) -> dict[str, str]:
    yourself = {"yourself": package} if package != "from_scratch" else {}
    return {**yourself, "from_scratch": "from_scratch"}


def _rows(milestone: Milestone, package: str) -> Iterator[list[object]]:
    ways: dict[str, tuple[Milestone, Any]] = {
        who: (milestone, found(where, milestone.file, milestone.target))
        for who, where in _packages(package).items()
    }
    for library, train in PEERS[milestone.file].items():
        ways[library] = replace(milestone, train=train), None
    calls_of_scratch = 0
    for who, (how, kind) in waiting(ways.items(), "what a step costs"):
        of_ranks = minidist.launch(cost_and_seconds, COST_RANKS, how, kind, timeout=TIMEOUT)
        (calls, messages, nbytes, peak, _), _ = of_ranks[0]
        if who == "from_scratch":
            calls_of_scratch = calls
        ms = 1e3 * max(seconds for _, seconds in of_ranks)
        yield [who, calls, messages, nbytes, peak, ms]
    phases = 2 if milestone.file == "ddp" else 1  # of a call, N - 1 messages each
    buckets = calls_of_scratch * phases // milestone.moved
    messages = milestone.moved * (COST_RANKS - 1) * buckets
    least = least_bytes(milestone) // COST_RANKS
    name = f"the least for {buckets} bucket{'s' * (buckets > 1)}"
    yield [name, calls_of_scratch, messages, least, "", ""]


def _ring_rows(package: str) -> Iterator[list[object]]:
    ways = {who: found(where, "ring", "all_reduce") for who, where in _packages(package).items()}
    ways["minidist"] = partial(minidist.all_reduce, algorithm="ring", check=False)
    for who, all_reduce in waiting(ways.items(), "what an all-reduce costs"):
        of_ranks = minidist.launch(ring_cost, RING_COST_RANKS, all_reduce, timeout=TIMEOUT)
        messages, nbytes, _ = of_ranks[0]
        yield [who, messages, nbytes, 1e3 * max(seconds for *_, seconds in of_ranks)]
    steps = 2 * (RING_COST_RANKS - 1)
    chunk = RING_BYTES // RING_COST_RANKS
    ms = 1e3 * steps * (RING_LINK.alpha + RING_LINK.beta * chunk)
    yield ["the cost model", steps, steps * chunk, ms]


def lines(package: str, only: str = "") -> Iterator[str]:
    """The report, as it comes: each milestone's verdict and scoreboard, or those of one file.

    Of all, the last line is what to do next.
    """
    verdicts = {}
    for name in ["ring", *(each.name for each in MILESTONES)]:
        file = "ring" if name == "ring" else by_name(name).file
        if only in ("", file, name):
            verdicts[name] = verdict = grade(name, package)
            yield f"{name}: {verdict}"
            if verdict:
                yield f"\n{scoreboard(name, package).data}\n"
    if not only:
        yield next_step(package, verdicts)


def next_step(package: str, verdicts: Mapping[str, Verdict]) -> str:
    """What to write, or to mend, and where."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return "Next: `make lab`, which puts the files to write into work/mine."
    for name, verdict in verdicts.items():
        if not verdict:
            do = "write" if verdict.status == "not yet" else "mend"
            file, target = "ring", "all_reduce, reduce_scatter and all_gather"
            if name != "ring":
                file, target = by_name(name).file, by_name(name).target
            path = os.path.relpath(Path(spec.origin).with_name(f"{file}.py"))
            return f"Next: {name}. In {path} {do} {target}; then run `make grade` again."
    return "All milestones are right. Next: the capstone, a lab that `make lab` opens."
