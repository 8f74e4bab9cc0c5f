"""Graders of the first chapter: wrong answers."""

from typing import Any

import numpy as np

from course.graders import why as grade
from minidist.memory.state import OPTIMIZERS
from tests.course.verdicts import diagnosed, reader


def sized(policy: Any, optimizer: str, *, master: bool = True, moments: int | None = None) -> int:
    """Right as it stands, with knobs to get it wrong."""
    kept = OPTIMIZERS[optimizer] if moments is None else moments
    whole = policy.weights.itemsize + policy.gradients.itemsize + kept * policy.moments.itemsize
    return int(whole + (policy.master.itemsize if master and policy.master else 0))


def fitting(size: int, policy: Any, optimizer: str) -> int:
    return size // sized(policy, optimizer)


def test_numbers_of_other_types_are_right() -> None:
    assert grade.largest(lambda *case: np.int64(fitting(case[0], *case[2:])))
    assert grade.bytes_per_parameter(lambda *case: np.float32(sized(*case)))
    assert grade.seat(lambda rank, n: np.array(divmod(rank, n)))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.bytes_per_parameter] = [
    ("unit", lambda p, o: 8 * sized(p, o), "those are bits"),
    ("mistake", lambda p, o: sized(p, o, master=False), "the master weights are missing"),
    ("mistake", lambda p, o: sized(p, o, moments=0), "the optimizer's moments are missing"),
    ("mistake", lambda p, o: sized(p, o) - p.gradients.itemsize, "the gradients are missing"),
    ("off by one", lambda p, o: sized(p, o, moments=min(1, OPTIMIZERS[o])), "keeps two moments"),
    ("mistake", lambda p, o: sized(p, o, moments=2), "Adam's, and sgd keeps fewer moments"),
    ("mistake", lambda p, o: (2 + OPTIMIZERS[o]) * p.weights.itemsize, "not every part has the"),
    ("constant", lambda p, o: 16, "For sgd with the policy 'fp32' you say 16 bytes.*it is 8"),
    ("these sizes", lambda p, o: 8 + 4 * OPTIMIZERS[o], "policy 'float"),
    ("type", lambda p, o: None, "expected a number of bytes"),
    ("type", lambda p, o: str(sized(p, o)), "you return '8'; expected a number of bytes"),
]
WRONG[grade.largest] = [
    ("mistake", lambda size, n, p, o: n * fitting(size, p, o), "every rank holds all of it"),
    ("mistake", lambda size, n, p, o: size // p.weights.itemsize, "too much"),
    ("unit", lambda size, n, p, o: 8 * fitting(size, p, o), "For 1 GPU .*: too much"),
    ("off by one", lambda size, n, p, o: fitting(size, p, o) - 1, "one more would fit as well"),
    ("off by one", lambda size, n, p, o: fitting(size, p, o) + 1, "too much"),
    ("constant", lambda size, n, p, o: 5 * 10**9, "sgd you say 5,000,000,000.*one more would fit"),
    ("these sizes", lambda size, n, p, o: size // (8 + 4 * OPTIMIZERS[o]), "float"),
    ("these sizes", lambda size, n, p, o: fitting(size, p, o) if n in (1, 8) else 0, "GPUs of"),
    ("type", lambda size, n, p, o: size / 16 + 0.5, "expected a whole number of parameters"),
    ("type", lambda size, n, p, o: (fitting(size, p, o),), "expected a whole number"),
    ("type", lambda size, n, p, o: -1, "expected a whole number of parameters"),
]
WRONG[grade.seat] = rows(r"""rank, n
mistake | (rank % n, rank // n) | The node comes first
mistake | (rank // n, rank) | That is the global rank
off by one | (rank // n + 1, rank % n + 1) | Nodes and local ranks count from 0
mistake | (rank % 2, rank // 2) | node by node, not in turns
constant | (0, 0) | rank 1 is \(0, 0\); it is \(0, 1\)
these sizes | divmod(rank, 4) | With 8 ranks on each of 3 nodes .* rank 4
these sizes | divmod(rank, n if n in (1, 4, 8) else 2) | With 5 ranks
type | rank | expected .node, local rank
type | (rank / n, rank % n) | you return \(0.25, 1\); expected \(node
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
