"""The graders of the chapter on choosing: wrong answers."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from course.graders import which as grade
from minidist.schedule.algorithms import tree_all_reduce
from minidist.schedule.schedule import Step
from tests.course.verdicts import diagnosed, reader


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


def at_once(ranks: int) -> list[Step]:
    """Everybody sends to everybody."""
    pairs = [(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    return [Step.of(*np.array(pairs).T, chunk=0, reduce=True)] if pairs else []


def there_and_back(ranks: int) -> list[Step]:
    return list(tree_all_reduce(ranks))


def crossing(ranks: int, alpha: float, beta: float, *, halves: float = 2.0) -> float:
    """Right as it stands, with a knob to get it wrong."""
    steps = math.log2(ranks)
    return alpha / beta * steps * (halves - 1) / (steps - halves * (ranks - 1) / ranks)


def segments(ranks: int, size: int, alpha: float, beta: float) -> int:
    return max(1, round(math.sqrt((2 * ranks - 3) * 2 * beta * size / alpha)))


def test_other_right_ways_are_right_too() -> None:
    """For a power of two, rank + d is as good as rank ^ d: it is the dissemination pattern."""

    def one_by_one(ranks: int) -> Iterator[Step]:
        yield from doubling(ranks, partner=lambda r, d: (r + d) % ranks)

    assert grade.recursive_doubling(one_by_one)
    assert grade.crossing(lambda *case: np.float64(crossing(*case)))
    assert grade.crossing(lambda *case: math.ceil(crossing(*case))), "rounded to whole bytes"
    assert grade.segments(lambda *case: np.int64(segments(*case)))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.recursive_doubling] = rows(r"""n
mistake | doubling(n, reduce=False) | a race: .*is also sent.*both must reduce
off by one | doubling(n, first=2) | rank 0 ends without the part of rank 1.*doubling up
mistake | doubling(n, partner=lambda r, d: r + d) | rank is not in 0..3.*rank \^ d
mistake | =same_partner | the part of rank 0 counted 2 times
traffic | =there_and_back | sums are right, but you take 4 steps .* doubling takes 2
gathers all | =at_once | is written twice in this step.*exchanges with one partner
constant | doubling(4) | With 2 ranks: .*a rank is not in 0..1
two ranks | doubling(n)[:1] | rank 0 ends without the part of rank 2
these sizes | doubling(n)[:4] | With 64 ranks: rank 0 ends without
type | doubling(n)[0] | expected a list of Step
type | None | With 4 ranks: you return None; expected a list of Step
""")
WRONG[grade.crossing] = rows(r"""n, alpha, beta
constant | 1e12 | recursive doubling is slower, .* a smaller size
constant | 1.0 | halving-doubling is slower, .* at a larger size
mistake | alpha / beta | at a larger size
mistake | beta / alpha * crossing(n, 1, 1) | at a larger size
unit | crossing(n, alpha, beta) / 4 | at a larger size
mistake | crossing(n, alpha, beta, halves=1.5) | For 8 ranks
off by one | alpha / beta * math.log2(n) / (math.log2(n) - 2) | at a smaller size
these sizes | crossing(8, alpha, beta) | For 4 ranks
these sizes | crossing(n, 1e-5, 1e-9) | alpha 3e-06 s
type | 0 | expected a number of bytes above zero
type | complex(crossing(n, alpha, beta)) | expected a number of bytes
""")
WRONG[grade.segments] = rows(r"""n, size, alpha, beta
constant | 1 | try more
constant | 16 | For 8 ranks, 1024 bytes.* try fewer
unit | size // 4 + 1 | each step would pay alpha
mistake | segments(n, size, alpha, beta) * 4 | try fewer
mistake | segments(n, size, beta, beta) | would pay alpha
these sizes | segments(n, size, 1e-5, 1e-10) | try fewer
two ranks | segments(2, size, alpha, beta) | try more
type | 0 | expected a whole number of segments, 1 or more
type | segments(n, size, alpha, beta) + 0.5 | expected a whole number of segments
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
