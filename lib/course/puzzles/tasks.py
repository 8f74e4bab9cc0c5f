"""A puzzle, and the task to write a collective: what is shown, what is right, and par."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from math import ceil, log2
from typing import Any, NamedTuple

from course.puzzles import Task
from course.puzzles.collective import measured, several
from minidist.planner.hardware import H100, NETWORK_LATENCY, NVLINK_LATENCY
from minidist.schedule import algorithms
from minidist.schedule.schedule import Algorithm
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
    """A star for at most `par` of a metric, with each of these numbers of ranks."""

    says: str
    metric: str
    par: Par
    ranks: Sequence[int] = ()  # for the first star


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
    for says, metric, par, own in stars:
        pars = {n: par(n) for n in own or ranks}
        marks.append({"says": says, "ranks": [*pars], "metric": metric, "par": pars})
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
    collective = task["collective"]
    known = {"the ring": RINGS[collective]} if collective in RINGS else {}
    if task["two_nodes"]:
        known["nodes first"] = lambda n: algorithms.hierarchical_all_reduce(n, local=n // 2)
    rows: list[list[Any]] = []
    for name, algorithm in known.items():
        done = replay(algorithm(n))
        rows.append([name, *(measured(done, column, task) for column in task["columns"])])
    if not task["two_nodes"]:
        least = LEAST[collective](n)
        times = [alpha * log(n) + beta * least * BUCKET for alpha, beta in LINKS.values()]
        rows.append(["at least", log(n), least, *times])
    return rows


def two_nodes_task() -> Task:
    """An all-reduce over two nodes with NVLink inside and a network card for each GPU."""
    links = [LINKS["NVLink of an H100"], LINKS["400 Gb/s InfiniBand"]]
    columns = [
        {"title": "steps", "metric": "steps"},
        {"title": "between the nodes", "metric": "between"},
        {"title": "time", "metric": "time", "links": links},
    ]
    least = Star("2 G between the nodes, of all ranks together", "between", lambda n: 2)
    task = collective_task("all_reduce", (4, 6, 8), least, two_nodes=True, columns=columns)
    pars = {n: rows[-1][-1] for n, rows in task["beside"].items()}
    quick = {"says": "as quick as nodes first", "ranks": [*pars], "metric": "time", "par": pars}
    task["marks"].append(quick | {"links": links})
    return task
