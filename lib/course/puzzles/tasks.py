"""The puzzles, and what the library knows of each before anybody has written anything."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from math import ceil, log2
from typing import Any, NamedTuple

from minidist.planner.hardware import H100, NETWORK_LATENCY, NVLINK_LATENCY
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, nodes, seconds, switch
from minidist.schedule.schedule import Algorithm, Schedule
from minidist.schedule.traffic import traffic

MIB = 2**20
BUCKET = 25 * MIB  # what DDP sends at once
LINKS = {
    "400 Gb/s InfiniBand": Link(NETWORK_LATENCY, 1 / H100.network),
    "a node of H100s": Link(NETWORK_LATENCY, 1 / H100.node_network),
    "NVLink of an H100": Link(NVLINK_LATENCY, 1 / H100.nvlink),
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
    """What a reader is asked to write, and all that the judge has to know about it."""

    name: str
    title: str
    goal: str
    stub: str
    hints: Sequence[str]
    task: Callable[[], Mapping[str, Any]]

    @property
    def solution(self) -> str:
        """Ours; nothing where solutions were left out."""
        path = files("course.puzzles") / "answers" / f"{self.name}.txt"
        return path.read_text("utf-8") if path.is_file() else ""


def log(n: int) -> int:
    """How often 1 has to double to reach n."""
    return ceil(log2(n))


def mark(says: str, ranks: Iterable[int], metric: str = "", par: Par | None = None) -> Any:
    """A star: right for these numbers of ranks and, if there is one, with at most `par`."""
    several = [*ranks]
    own = {"says": says, "ranks": several}
    return own | {"metric": metric, "par": {n: par(n) for n in several}} if par else own


def collective_task(
    collective: str,
    function: str,
    marks: Sequence[Any],
    chunks: Callable[[int], int] = lambda n: n,
    *,
    judge: str = "collective",
    **rules: bool,
) -> dict[str, Any]:
    """The task to write a collective; what the ring takes and what is least stands beside it."""
    several = sorted({n for each in marks for n in each["ranks"]})
    links = [(link.alpha, link.beta) for link in LINKS.values()]
    columns = [{"title": "steps", "metric": "steps"}, {"title": "sent per rank", "metric": "sent"}]
    timed = [{"title": name, "metric": "time", "links": [link, link]} for name, link in
             zip(LINKS, links, strict=True)]  # fmt: skip
    return {
        "judge": judge,
        "collective": collective,
        "function": function,
        "marks": [*marks],
        "chunks": {n: chunks(n) for n in several},
        "show": 4,
        "shows": [n for n in several if n <= 8],
        "one_port": rules.get("one_port", True),
        "only_right": rules.get("only_right", False),
        "two_nodes": False,
        "free": rules.get("free", False),
        "bytes": BUCKET,
        "size": "G = 25 MiB",
        "columns": [*columns, *timed],
        "beside": {n: [*_beside(collective, n)] for n in several},
    }


def _beside(collective: str, n: int) -> Iterable[list[Any]]:
    if collective in RINGS:
        schedule = RINGS[collective](n)
        yield ["the ring", *_moved(schedule), *(
            seconds(schedule, BUCKET, switch(link)) for link in LINKS.values()
        )]  # fmt: skip
    least = LEAST[collective](n)
    yield ["at least", log(n), least, *(
        link.alpha * log(n) + link.beta * least * BUCKET for link in LINKS.values()
    )]  # fmt: skip


def _moved(schedule: Schedule) -> tuple[int, float]:
    """Steps, and what the busiest rank sends in tensors."""
    whole = traffic(schedule, schedule.chunks, itemsize=1)
    return whole.steps, float(whole.sent_bytes.max()) / schedule.chunks


def two_nodes_task(function: str) -> dict[str, Any]:
    """An all-reduce over two nodes with NVLink inside and a network card for each GPU."""
    ranks = (4, 6, 8)
    inside, between = LINKS["NVLink of an H100"], LINKS["400 Gb/s InfiniBand"]
    links = [(link.alpha, link.beta) for link in (inside, between)]

    def row(name: str, schedule: Schedule) -> list[Any]:
        local = schedule.ranks // 2
        own = traffic(schedule, schedule.chunks, 1, local)
        took = seconds(schedule, BUCKET, nodes(local, inside, between, rails=local))
        return [name, own.steps, own.between_nodes / schedule.chunks, took]

    def by_nodes(n: int) -> list[Any]:
        return row("nodes first", algorithms.hierarchical_all_reduce(n, local=n // 2))

    marks = [
        mark("right for 4, 6 and 8 ranks", ranks),
        mark("2 G between the nodes, of all ranks together", ranks, "between", lambda n: 2),
        mark("as quick as nodes first", ranks, "time", lambda n: float(by_nodes(n)[3])),
    ]
    marks[2]["links"] = links
    columns = [
        {"title": "steps", "metric": "steps"},
        {"title": "between the nodes", "metric": "between"},
        {"title": "time", "metric": "time", "links": links},
    ]
    task = collective_task("all_reduce", function, marks)
    beside = {n: [row("the ring", algorithms.ring_all_reduce(n)), by_nodes(n)] for n in ranks}
    return task | {"two_nodes": True, "columns": columns, "beside": beside}


def steps_and_bytes(
    ranks: Sequence[int], steps: tuple[str, Par], sent: tuple[str, Par]
) -> list[Any]:
    """Three stars: right, in so many steps, with so many bytes."""
    return [
        mark(f"right for {min(ranks)} to {max(ranks)} ranks", ranks),
        mark(steps[0], ranks, "steps", steps[1]),
        mark(sent[0], ranks, "sent", sent[1]),
    ]
