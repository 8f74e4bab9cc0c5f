"""The exercise of the lab on several hosts: right answers, and wrong ones diagnosed."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from course.graders import cluster as grade
from course.graders.cluster import Seat
from tests.course.verdicts import diagnosed


def by_first_ranks(rank: int, gpus: list[int]) -> Seat:
    firsts = [0, *accumulate(gpus)]
    node = bisect_right(firsts, rank) - 1
    return node, rank - firsts[node]


def seated(*, swapped: bool = False, local: int = 0) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_seat(rank: int, gpus: list[int]) -> Seat:
        node, own = by_first_ranks(rank, gpus)
        return (own + local, node) if swapped else (node, own + local)

    return my_seat


def emptying(rank: int, gpus: list[int]) -> Seat:
    node = 0
    while rank >= gpus[0]:
        rank, node = rank - gpus.pop(0), node + 1
    return node, rank


def test_another_right_way_is_right_too() -> None:
    assert grade.seat(by_first_ranks)


WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.seat] = [
    ("mistake", lambda rank, gpus: divmod(rank, gpus[0]), r"\[1, 3\].* as many ranks as the first"),
    ("mistake", lambda rank, gpus: divmod(rank, len(gpus))[::-1], "node by node, not in turns"),
    ("mistake", seated(swapped=True), "The node comes first, then the local rank"),
    ("constant", lambda rank, gpus: (0, 0), r"\[4\] ranks you say that rank 1 is \(0, 0\)"),
    ("these sizes", lambda rank, gpus: divmod(rank, max(gpus)), r"\[1, 3\] ranks you say that"),
    ("off by one", seated(local=1), "Local ranks count from 0"),
    ("type", lambda rank, gpus: str(by_first_ranks(rank, gpus)), r"expected \(node, local rank\)"),
    ("input", emptying, "the list is changed; read it only"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
