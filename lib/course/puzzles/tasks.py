"""A puzzle, and the task to write a collective: what is shown, what is right, and par."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from math import ceil, log2
from typing import Any, NamedTuple

from course.puzzles import Task
from course.puzzles.collective import measured, several
from minidist.planner.hardware import H100, NETWORK_LATENCY, NVLINK_LATENCY
from minidist.schedule import algorithms
from minidist.schedule.schedule import Algorithm, Schedule
from minidist.schedule.traffic import replay

MIB = 2**20
BUCKET = 25 * MIB  # DDP's default size
LINKS = {  # seconds per message, and per byte
    "400 Gb/s InfiniBand": (NETWORK_LATENCY, 1 / H100.network),
    "a node of H100s": (NETWORK_LATENCY, 1 / H100.node_network),
    "NVLink of an H100": (NVLINK_LATENCY, 1 / H100.nvlink),
}
RINGS: dict[str, Algorithm] = {
    "all_reduce": algorithms.ring_all_reduce,
    "all_gather": algorithms.ring_all_gather,
    "reduce_scatter": algorithms.ring_reduce_scatter,
}
LEAST: dict[str, Callable[[int], float]] = {  # tensors that the busiest rank has to send
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "all_to_all": lambda n: (n - 1) / n**2,
}
Par = Callable[[int], float]


class Puzzle(NamedTuple):
    """A function that a reader has to write, and all that the judge needs to know about it."""

    name: str
    title: str
    goal: str
    stub: str
    hints: Sequence[str]
    task: Task

    @property
    def solution(self) -> str:
        """Ours; nothing where solutions were left out."""
        path = files("course.puzzles") / "answers" / f"{self.name}.txt"
        return path.read_text("utf-8") if path.is_file() else ""


class Star(NamedTuple):
    """A star for at most so much of each metric, with each of these numbers of ranks."""

    says: str
    limits: Mapping[str, Par]
    ranks: Sequence[int] = ()  # those of the first star


def log(n: int) -> int:
    """The number of doublings from 1 to at least n."""
    return ceil(log2(n))


def collective_task(
    collective: str,
    ranks: Sequence[int],
    *stars: Star,
    chunks: Par = lambda n: n,
    **more: object,
) -> Task:
    """The task to write a collective; what the ring takes and what is least stands beside it.

    The first star is for being right with these numbers of `ranks`; without others there are none.
    """
    marks: list[Task] = [
        {"says": f"right for {several(ranks)}" if stars else "", "ranks": [*ranks]}
    ]
    for says, limits, own in stars:
        each = [*(own or ranks)]
        pars = {metric: {n: par(n) for n in each} for metric, par in limits.items()}
        marks.append({"says": says, "ranks": each, "limits": pars})
    numbers = sorted({n for mark in marks for n in mark["ranks"]})
    task: Task = {
        "judge": "collective",
        "collective": collective,
        "function": collective,
        "marks": marks,
        "chunks": {n: chunks(n) for n in numbers},
        "show": 4,
        "shows": [n for n in numbers if n <= 8],
        "one_port": True,
        "only_right": False,
        "two_nodes": False,
        "free": False,
        "bytes": BUCKET,
        "links": [],
        "size": "G = 25 MiB",
        "columns": [
            {"title": "steps", "metric": "steps"},
            {"title": "sent per rank", "metric": "sent"},
            *({"title": name, "metric": "time", "links": [link]} for name, link in LINKS.items()),
        ],
    } | more
    return task | {"beside": {n: beside(task, n) for n in numbers}}


def beside(task: Task, n: int) -> list[list[Any]]:
    """Prices to compare a reader's with, one for each of a task's columns."""
    if task["two_nodes"]:
        known: dict[str, Algorithm] = {"nodes first": nodes_first}
        least = [2 * log(n // 2) + 1, 2, least_of_two_nodes(n)]
    else:
        collective = task["collective"]
        known = {"the ring": RINGS[collective]} if collective in RINGS else {}
        sent = LEAST[collective](n)
        times = [alpha * log(n) + beta * sent * BUCKET for alpha, beta in LINKS.values()]
        least = [log(n), sent, *times]
    rows: list[list[Any]] = []
    for name, algorithm in known.items():
        done = replay(algorithm(n))
        rows.append([name, *(measured(done, column, task) for column in task["columns"])])
    return [*rows, ["at least", *least]]


# ---- two nodes ----

INSIDE, BETWEEN = LINKS["NVLink of an H100"], LINKS["400 Gb/s InfiniBand"]


def nodes_first(n: int) -> Schedule:
    """The library's all-reduce over two nodes."""
    return algorithms.hierarchical_all_reduce(n, local=n // 2)


def least_of_two_nodes(n: int) -> float:
    """The least seconds of an all-reduce over two nodes of two to four ranks.

    The first rank with a sum needs N - 1 messages or more, and then every other rank needs one:
    2N - 2 for each chunk, two of them between the nodes. A rank sends one at a time, so the time
    for bytes is at least what these take when all ranks send equally many. So few messages need
    2 log2(N/2) + 1 steps, and one more per chunk costs more than all steps that it can save.
    """
    local = n // 2
    inside = 2 * (log(local) * INSIDE[0] + (local - 1) / local * BUCKET * INSIDE[1])
    return inside + BETWEEN[0] + BUCKET / local * BETWEEN[1]


def two_nodes_task() -> Task:
    """An all-reduce over two nodes with NVLink inside and a network card for each GPU."""
    links = [INSIDE, BETWEEN]
    columns = [
        {"title": "steps", "metric": "steps"},
        {"title": "between the nodes", "metric": "between"},
        {"title": "time", "metric": "time", "links": links},
    ]
    stars = [
        Star("2 G between the nodes, of all ranks together", {"between": lambda n: 2}),
        Star("as quick as can be", {"time": least_of_two_nodes}),
    ]
    return collective_task(
        "all_reduce", (4, 6, 8), *stars, two_nodes=True, columns=columns, links=links
    )
