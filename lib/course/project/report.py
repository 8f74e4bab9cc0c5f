"""Grade a project: which milestones are right, and what they cost beside others' code."""

import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from IPython.display import Markdown
from torch.optim import SGD
from tqdm import tqdm  # type: ignore[import-untyped]

import minidist
from course.pages.table import table
from course.project.milestones import MILESTONES, Milestone, by_name
from course.project.models import EITHER_ORDER, MODELS, drawn, squares
from course.project.mutation import board, boards, catches
from course.project.parity import check_parity
from course.project.peers import PEERS
from course.project.ring import check_order, check_ring
from course.project.scenarios import SCENARIOS, check_scenarios
from course.project.scores import Cost, cost, least_bytes, ring_model, ring_score, score
from course.project.submission import found, mine, with_submission
from course.sandbox.forbidden import without_wrappers
from course.verdict import Grader, Verdict, Wrong, many, on_ranks

__all__ = ["grade", "lines", "mine", "ring", "scoreboard", "trains"]

RING = "all_reduce", "reduce_scatter", "all_gather"
RANKS = (1, 2, 3, 4, 5)
COST_RANKS = 3  # on two, a gather of everything sends no more than an all-reduce
SCORE_RANKS, RING_SCORE_RANKS = 2, 4
SPARE = 1.1  # of the peak of from_scratch: buckets may be cut a little differently
SPARE_OF_PROCESS = 1.25  # of which a page here and there is somebody else's
TIMEOUT = 30.0
waiting = partial(tqdm, leave=False)  # a bar on stderr: a grader catches what is printed
HINTS = {"NoneType": " Is it the gradient of a frozen parameter?"}
HEAD = ["code of", "calls", "messages", "bytes sent", "bytes at the peak", "ms on the link"]
SENT_HEAD = ["code of", "messages", "bytes sent"]
RING_HEAD = [*SENT_HEAD, "ms on the link"]


TARGETS = {  # name → in which file, and what to write there
    "ring": ("ring", f"{', '.join(RING[:2])} and {RING[2]}"),
    **{each.name: (each.file, each.target) for each in MILESTONES},
    **{name: (each.file, " and ".join(each.names)) for name, each in SCENARIOS.items()},
    "checks": ("checks", "check"),
}


def grade(name: str, package: str = "mine") -> Verdict:
    """Grade "ring", "checks", or the milestone of this name, as it stands in a package."""
    if name in SCENARIOS:
        return scenarios(package, name)
    others = {"ring": ring, "checks": catches}
    return others[name](package) if name in others else trains(package, by_name(name))


def new_seed() -> int:
    """Of what is drawn: `COURSE_SEED`, or one that nobody knows before."""
    return int(os.environ.get("COURSE_SEED") or secrets.randbelow(1000))


def source(package: str, file: str, *names: str) -> Callable[[], Any]:
    """What loads something of a project's file, on a rank."""
    return partial(found, package, file, *names)


@Grader
def ring(package: str) -> str:
    """Grade `ring.py`: the results, then what each rank sends."""
    module, seed = source(package, "ring", *RING), new_seed()
    for ranks in waiting(RANKS, "ring, on 1 to 5 ranks"):
        orders = graded(module, ranks, check_ring, seed)
        for collective in orders[0]:
            check_order(collective, [of_rank[collective] for of_rank in orders])
    return (
        f"for all three collectives, on {RANKS[0]} to {RANKS[-1]} ranks, in N - 1 messages a "
        "phase, of a chunk each: fewer bytes are not possible."
    )


@Grader
def scenarios(package: str, name: str) -> str:
    """Grade a milestone by its scenarios: what comes out, and what each rank sends."""
    todo, seed = SCENARIOS[name], new_seed()
    written = source(package, todo.file, *todo.names)
    for ranks in waiting(RANKS, f"{name}, on 1 to 5 ranks"):
        of_ranks = graded(written, ranks, check_scenarios, name, seed)
        for case in todo.cases:
            check_order(f"{name} ({case})", [sent[case].batches for sent in of_ranks])
    return (
        f"for {', '.join(todo.cases)}: on {RANKS[0]} to {RANKS[-1]} ranks, what comes out is that "
        "of one process with the whole batch, and no rank sends more than it has to."
    )


@Grader
def trains(package: str, milestone: Milestone) -> str:
    """Grade a milestone: the training, then what a step sends, holds, and hides."""
    kind, seed = source(package, milestone.file, milestone.target), new_seed()
    for ranks in waiting(RANKS, f"{milestone.name}, on 1 to 5 ranks"):
        graded(kind, ranks, _train_each, milestone, seed)
    costs = graded(kind, COST_RANKS, cost, milestone)
    _check_cost(costs, milestone)
    tried, calls = len(models_of(milestone)) + 1, costs[0].calls
    return (
        f"It trains {tried} models on {RANKS[0]} to {RANKS[-1]} ranks as one process does, "
        f"with {many(calls, 'call')} and {costs[0].nbytes:,} bytes a step on {COST_RANKS} ranks, "
        "the least there is."
    )


def models_of(milestone: Milestone) -> list[str]:
    """What a milestone must train; in ZeRO and FSDP all ranks must reach units in one order."""
    return [name for name in MODELS if milestone.file == "ddp" or name != EITHER_ORDER]


def graded(kind: Callable[[], Any], ranks: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """On so many ranks: what `work` finds with the reader's code."""
    return on_ranks(with_submission, ranks, kind, work, *args, timeout=TIMEOUT, hints=HINTS)


def _train_each(kind: type, milestone: Milestone, seed: int) -> None:
    with without_wrappers("the calls of `comm`"):
        for name in models_of(milestone):
            check_parity(milestone, kind, name, *MODELS[name])
        of = f"layers drawn with seed {seed}, trained by SGD"
        check_parity(milestone, kind, of, drawn(seed), squares, SGD)


def _check_cost(costs: list[Cost], milestone: Milestone) -> None:
    least = least_bytes(milestone, COST_RANKS)
    sent = sum(each.nbytes for each in costs)
    if sent > least:
        raise Wrong(
            f"The result is right, and all {COST_RANKS} ranks together send {sent:,} bytes in a "
            f"step; {least:,} are enough: {milestone.moved} (N - 1) times the model."
        )
    own, right = costs[0], reference(milestone)
    if own.calls > right.calls:
        raise Wrong(f"The result is right, in {own.calls} calls a step; {right.calls} are enough.")
    if milestone.lean:
        _check_memory(own, right)
    if own.overlaps < milestone.overlap * right.overlaps:
        raise Wrong(
            f"The result is right, and {own.overlaps} times in a step a call is on its way while a "
            f"layer computes or another call is made; it could be {right.overlaps} times. "
            "Make each call as early as you can, with async_op=True, and wait as late as you can."
        )
    if own.passed > right.passed:
        raise Wrong(
            f"The result is right, and {many(own.passed, 'time')} in a step a gather is "
            "waited for that was called after another: gather one's own unit before the next."
        )
    if own.twice > right.twice:
        raise Wrong(
            f"The result is right, but a step in which a unit runs twice takes {own.twice} "
            f"calls; {right.twice} are enough. Gather a unit only if its weights are not there."
        )
    if own.early < milestone.overlap * right.early:
        raise Wrong(
            f"The result is right, and {own.early} of {own.calls} calls are made before "
            f"backward ends; it could be {right.early}."
        )
    if sent < least:
        raise Wrong(
            f"The result is right, and {sent:,} of the {least:,} bytes that it takes went through "
            "`comm`. Make its calls, and no others."
        )


def _check_memory(own: Cost, right: Cost) -> None:
    if own.peak > SPARE * right.peak:
        raise Wrong(
            f"The result is right, and a rank holds {own.peak:,} bytes at the peak of a step; "
            f"{right.peak:,} are enough. What is held longer than it is needed?"
        )
    if own.kept > SPARE_OF_PROCESS * right.kept:
        raise Wrong(
            f"The result is right, and some steps let the process of a rank grow by "
            f"{own.kept:,} bytes; {right.kept:,} are enough. What is kept, and not in a tensor?"
        )


@cache
def reference(milestone: Milestone) -> Cost:
    """What a step of `from_scratch` costs on rank 0."""
    kind = source("from_scratch", milestone.file, milestone.target)
    return Cost(*graded(kind, COST_RANKS, cost, milestone)[0])


# ---- beside others' code ----


def scoreboard(name: str, package: str = "mine") -> Markdown:
    """What a step of a milestone costs, in this package, in `from_scratch` and in libraries.

    Of "ring": an all-reduce of 1 MiB on four ranks. Of "checks": what it caught when last graded.
    """
    if name == "checks":
        return board(package)
    try:
        if name == "ring":
            return table(RING_HEAD, _ring_rows(package))
        if name in SCENARIOS:
            return table(SENT_HEAD, _sent_rows(name, package))
        return table(HEAD, _rows(by_name(name), package))
    except (NotImplementedError, Wrong) as error:
        return Markdown(f"No scoreboard: {error}")  # type: ignore[no-untyped-call]


def _packages(package: str) -> dict[str, str]:
    yourself = {"yourself": package} if package != "from_scratch" else {}
    return {**yourself, "from_scratch": "from_scratch"}


def _rows(milestone: Milestone, package: str) -> Iterator[list[object]]:
    ways = {
        who: (source(where, milestone.file, milestone.target), milestone)
        for who, where in _packages(package).items()
    }
    for library, train in PEERS[milestone.file].items():
        ways[library] = lambda: None, replace(milestone, train=train)
    for who, (kind, how) in waiting(ways.items(), "what a step costs"):
        yield _row(who, SCORE_RANKS, kind, score, how)
    phases = 2 if milestone.file == "ddp" else 1  # of a call, N - 1 messages each
    calls = reference(milestone).calls
    buckets = calls * phases // milestone.moved
    messages = milestone.moved * (SCORE_RANKS - 1) * buckets
    least = least_bytes(milestone, SCORE_RANKS) // SCORE_RANKS
    yield [f"the least for {many(buckets, 'bucket')}", calls, messages, least, "", ""]


def _ring_rows(package: str) -> Iterator[list[object]]:
    ways = {who: source(where, "ring", "all_reduce") for who, where in _packages(package).items()}
    ways["minidist"] = lambda: partial(minidist.all_reduce, algorithm="ring", check=False)
    for who, all_reduce in waiting(ways.items(), "what an all-reduce costs"):
        yield _row(who, RING_SCORE_RANKS, all_reduce, ring_score)
    *counts, seconds = ring_model(RING_SCORE_RANKS)
    yield ["the cost model", *counts, 1e3 * seconds]


def _sent_rows(name: str, package: str) -> Iterator[list[object]]:
    todo = SCENARIOS[name]
    for who, where in waiting(_packages(package).items(), "what the scenarios send"):
        written = source(where, todo.file, *todo.names)
        sent = graded(written, RING_SCORE_RANKS, check_scenarios, name, 0)[0].values()
        yield [who, sum(each.messages for each in sent), sum(each.nbytes for each in sent)]


def _row(who: str, ranks: int, kind: Callable[[], Any], *work: Any) -> list[object]:
    """What rank 0 counts, and the milliseconds of the slowest rank."""
    of_ranks = graded(kind, ranks, *work)
    return [who, *of_ranks[0][0], 1e3 * max(seconds for _, seconds in of_ranks)]


# ---- the report ----


def names_of(only: str) -> list[str]:
    """The milestones to grade: all, those of a file, or one.

    Raises:
        ValueError: there is no such file or milestone.
    """
    names = [name for name, (file, _) in TARGETS.items() if only in ("", file, name)]
    if not names:
        known = ", ".join(dict.fromkeys([*(file for file, _ in TARGETS.values()), *TARGETS]))
        raise ValueError(f"there is no milestone {only!r}; there are {known}")
    return names


def lines(
    package: str, only: str = "", verdicts: dict[str, Verdict] | None = None
) -> Iterator[str]:
    """The report, as it comes: each milestone's verdict and scoreboard; the last is what to do."""
    verdicts = {} if verdicts is None else verdicts
    for name in names_of(only):
        verdicts[name] = verdict = grade(name, package)
        yield f"{name}: {verdict}"
        if verdict or (name == "checks" and package in boards):
            yield f"\n{scoreboard(name, package).data}\n"
    right = sum(map(bool, verdicts.values()))
    yield f"{right} of {len(verdicts)}. {next_step(package, verdicts)}"


def next_step(package: str, verdicts: Mapping[str, Verdict]) -> str:
    """What to write, or to mend, and where."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return "Next: `make lab`, which puts the files to write into work/mine."
    for name, verdict in verdicts.items():
        if not verdict:
            do = "write" if verdict.status == "not yet" else "mend"
            file, target = TARGETS[name]
            path = os.path.relpath(Path(spec.origin).with_name(f"{file}.py"))
            return f"Next: {name}. In {path} {do} {target}; then run `make grade` again."
    return "All that was graded is right. Next: the capstone, a lab that `make lab` opens."
