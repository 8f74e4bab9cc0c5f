"""The graders of the chapter on choosing: mistakes are named."""

from typing import Any

import numpy as np

from course.graders import which as grade
from minidist.schedule.algorithms import tree_all_reduce
from minidist.schedule.schedule import Step
from tests.course.verdicts import each_mistake, says


def doubling(
    ranks: int, *, partner: Any = np.bitwise_xor, reduce: bool = True, first: int = 1
) -> list[Step]:
    """Right as it stands, with a knob for each way to get it wrong."""
    rank, steps, distance = np.arange(ranks), [], first
    while distance < ranks:
        steps.append(Step.of(rank, partner(rank, distance), chunk=0, reduce=reduce))
        distance *= 2
    return steps


def same_partner(ranks: int) -> list[Step]:
    rank = np.arange(ranks)
    return [Step.of(rank, rank ^ 1, 0, True) for _ in range(ranks.bit_length() - 1) if ranks > 1]


def test_the_other_direction_round_the_ring_of_partners_is_right_too() -> None:
    """For a power of two, rank + d is as good as rank ^ d: it is the dissemination pattern."""
    assert grade.recursive_doubling(lambda n: doubling(n, partner=lambda r, d: (r + d) % n))


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.recursive_doubling] = [
    (lambda n: doubling(n, reduce=False), "a race: .*is also sent.*both must reduce"),
    (lambda n: doubling(n, first=2), "rank 0 ends without the part of rank 1.*doubling up"),
    (lambda n: doubling(n, partner=lambda r, d: r + d), "rank is not in 0..3.*rank \\^ d"),
    (same_partner, "the part of rank 0 counted 2 times"),
    (
        lambda n: list(tree_all_reduce(n)),
        "the sums are right, but you take 4 steps and recursive doubling takes 2",
    ),
    (lambda n: doubling(n)[0], "expected a list of Step"),
]
MISTAKES[grade.crossing] = [
    (lambda n, alpha, beta: 1e12, "recursive doubling is slower, .* at a smaller size"),
    (lambda n, alpha, beta: 1.0, "halving-doubling is slower, .* at a larger size"),
    (lambda n, alpha, beta: 0, "expected a number of bytes above zero"),
]
MISTAKES[grade.between_nodes] = [
    (lambda n, local, size: (n // local) * 2 * (n - 1) * size / n, "what the flat ring sends"),
    (lambda n, local, size: 2 * (n // local - 1) * size / (n // local), "one node sends"),
    (lambda n, local, size: 2 * (n // local - 1) * size / n, "one rank sends"),
    (lambda n, local, size: (n // local - 1) * size, "That is one phase"),
    (lambda n, local, size: 2 * (n // local - 1) * size * local, "only its own slice"),
    (lambda n, local, size: 2 * (n - 1) * size, "not all of it leaves a node"),
    (lambda n, local, size: 2 * (n / local) * size, "the simulator counts"),
]
MISTAKES[grade.segments] = [
    (lambda n, size, alpha, beta: 1, "try more"),
    (lambda n, size, alpha, beta: 10**7, "each step would pay alpha"),
    (lambda n, size, alpha, beta: 16, "For 8 ranks, 1024 bytes.* try fewer"),
    (lambda n, size, alpha, beta: 0, "expected a whole number of segments, 1 or more"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
