"""Graders of the first chapter: typical mistakes."""

from typing import Any

from course.graders import why as grade
from minidist.memory.state import OPTIMIZERS
from tests.course.verdicts import each_mistake, says


def sized(policy: Any, optimizer: str, *, master: bool = True, moments: int | None = None) -> int:
    """Right as it stands, with knobs to get it wrong."""
    kept = OPTIMIZERS[optimizer] if moments is None else moments
    whole = policy.weights.itemsize + policy.gradients.itemsize + kept * policy.moments.itemsize
    return int(whole + (policy.master.itemsize if master and policy.master else 0))


def fitting(size: int, policy: Any, optimizer: str) -> int:
    return size // sized(policy, optimizer)


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.bytes_per_parameter] = [
    (lambda p, o: 8 * sized(p, o), "those are bits"),
    (lambda p, o: sized(p, o, master=False), "the master weights are missing"),
    (lambda p, o: sized(p, o, moments=0), "the optimizer's moments are missing"),
    (lambda p, o: sized(p, o) - p.gradients.itemsize, "the gradients are missing"),
    (lambda p, o: sized(p, o, moments=min(1, OPTIMIZERS[o])), "Adam keeps two moments"),
    (lambda p, o: sized(p, o, moments=2), "that is Adam's, and sgd keeps fewer moments"),
    (lambda p, o: (2 + OPTIMIZERS[o]) * p.weights.itemsize, "not every part has the dtype"),
    (lambda p, o: None, "expected a number of bytes"),
]
MISTAKES[grade.largest] = [
    (lambda size, n, p, o: n * fitting(size, p, o), "every rank holds all of it"),
    (lambda size, n, p, o: size // p.weights.itemsize, "too much"),
    (lambda size, n, p, o: fitting(size, p, o) - 1, "one more would fit as well"),
    (lambda size, n, p, o: size / 16 + 0.5, "expected a whole number of parameters"),
]
MISTAKES[grade.seat] = [
    (lambda rank, n: (rank % n, rank // n), "The other way round"),
    (lambda rank, n: (rank // n, rank), "That is the global rank"),
    (lambda rank, n: (rank // n + 1, rank % n + 1), "Both count from 0"),
    (lambda rank, n: (rank % 2, rank // 2), "Ranks are not dealt out like cards"),
    (lambda rank, n: rank, "expected \\(node, local rank\\)"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
