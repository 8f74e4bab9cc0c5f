"""The cost of a milestone in the reader's package, in `from_scratch` and in libraries."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from IPython.display import Markdown
from tqdm import tqdm  # type: ignore[import-untyped]

import minidist
from course.ask.verdict import LESSON, Wrong, many
from course.pages.table import table
from course.project import costs
from course.project.check import check_cases
from course.project.messages import recorded, sends
from course.project.milestones import Milestone, by_name
from course.project.mutation import board
from course.project.peers import PEERS
from course.project.submission import graded, source
from minidist.comm.ours import Ours
from minidist.comm.slowed import Slowed
from minidist.schedule.cost import Link

Row = list[object]
Score = tuple[tuple[int, ...], float]  # what a rank counts, and its seconds on the link
HEAD = ["code of", "calls", "messages", "bytes sent", "bytes at the peak", "ms on the link"]
LINK = Link(alpha=100e-6, beta=1 / 250e6)  # 100 µs and 250 MB/s: what a laptop's cores can hide
STEP_RANKS, RANKS = 2, 4
ROWS, ROUNDS = 96, 9
RING_BYTES = 2**20
RING_LINK = Link(alpha=1e-3, beta=1 / 50e6)  # slow, as four ranks wake each other six times


def scoreboard(name: str, package: str = "mine") -> Markdown:
    """A table: of a training step on two ranks, or of what four send in the scenarios.

    Of "ring": an all-reduce of 1 MiB on four ranks. Of "checks": what it caught when last graded.
    """
    if name == "checks":
        return board(package)
    milestone = by_name(name)
    yourself = {"yourself": package} if package != LESSON else {}
    packages = {**yourself, LESSON: LESSON}
    sources = {
        who: source(each, milestone.file, *milestone.names) for who, each in packages.items()
    }
    try:
        if name == "ring":
            return table([HEAD[0], *HEAD[2:4], HEAD[-1]], _ring_rows(packages))
        if milestone.train:
            return table(HEAD, _step_rows(name, sources))
        return table([HEAD[0], *HEAD[2:4]], _sent_rows(milestone, sources))
    except (NotImplementedError, Wrong) as error:
        return Markdown(f"No scoreboard: {error}")  # type: ignore[no-untyped-call]


def _step_rows(name: str, sources: dict[str, Callable[[], Any]]) -> Iterator[Row]:
    milestone = by_name(name)
    ways = {who: (kind, milestone) for who, kind in sources.items()}
    for library, train in PEERS[milestone.file].items():
        ways[library] = lambda: None, replace(milestone, train=train)
    for who, (kind, how) in tqdm(ways.items(), "what a step costs", leave=False, disable=None):
        yield _row(who, graded(kind, STEP_RANKS, step_score, how))
    phases = 2 if milestone.file == "ddp" else 1  # phases of a call, N - 1 messages each
    reference = costs.reference(name)
    buckets = reference.calls * phases // milestone.moved
    messages = milestone.moved * (STEP_RANKS - 1) * buckets
    phase = reference.nbytes // (costs.RANKS - 1)  # one share for each rank but one
    least = (STEP_RANKS - 1) * phase // STEP_RANKS
    yield [f"the least for {many(buckets, 'bucket')}", reference.calls, messages, least, "", ""]


def _ring_rows(packages: dict[str, str]) -> Iterator[Row]:
    ways = {who: source(package, "ring", "all_reduce") for who, package in packages.items()}
    ways["minidist"] = lambda: partial(minidist.all_reduce, algorithm="ring", check=False)
    for who, all_reduce in tqdm(
        ways.items(), "what an all-reduce costs", leave=False, disable=None
    ):
        yield _row(who, graded(all_reduce, RANKS, ring_score))
    steps, chunk = 2 * (RANKS - 1), RING_BYTES // RANKS
    ms = 1e3 * steps * (RING_LINK.alpha + RING_LINK.beta * chunk)
    yield ["the cost model", steps, steps * chunk, ms]


def _sent_rows(milestone: Milestone, sources: dict[str, Callable[[], Any]]) -> Iterator[Row]:
    for who, written in tqdm(sources.items(), "what the scenarios send", leave=False, disable=None):
        sent = graded(written, RANKS, check_cases, milestone, 0)[0].values()
        yield [who, sum(each.messages for each in sent), sum(each.nbytes for each in sent)]


def _row(who: str, of_ranks: list[Score]) -> Row:
    """A row: rank 0's counts, and the milliseconds of the slowest rank."""
    return [who, *of_ranks[0][0], 1e3 * max(seconds for _, seconds in of_ranks)]


# ---- on a rank ----


def step_score(kind: type, milestone: Milestone) -> Score:
    """Calls, messages, bytes and the peak of a step, and its seconds on the link."""
    slowed = Slowed(Ours(algorithm="shared_memory", check=False), LINK)
    trained = milestone.train(kind, costs.build(), slowed, costs.CAP)
    rows = torch.ones(ROWS, costs.WIDTH).double()
    seconds = fastest(lambda: costs.step(trained, rows))  # first: the measure changes malloc
    return costs.cost(kind, milestone)[:4], seconds


def ring_score(all_reduce: Callable[[torch.Tensor], object]) -> Score:
    """Messages and bytes of an all-reduce of 1 MiB, and its seconds on the link."""
    tensor, sent = torch.ones(RING_BYTES // 4), list[int]()

    def once() -> None:
        with recorded(RING_LINK) as batches:
            all_reduce(tensor)
        sent[:] = sends(batches)

    seconds = fastest(once)
    return (len(sent), sum(sent)), seconds


def fastest(work: Callable[[], object]) -> float:
    """The seconds of the fastest round: what slows one down is other work on the machine."""
    took = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)
