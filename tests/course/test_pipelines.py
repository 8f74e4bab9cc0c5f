"""The graders of the lab on pipelines: wrong answers."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from course.chapters.pipelines import exercises as grade
from minidist.schedule.pipeline import gpipe, most_held, replay
from minidist.schedule.pipeline import one_f_one_b as library_1f1b
from minidist.schedule.pipeline import zero_bubble as library_zero
from tests.course.verdicts import diagnosed, reader

Pairs = list[tuple[str, int]]


def ordered(rank: int, ranks: int, micro: int, *, ahead: int | None = None) -> Pairs:
    """1F1B, or with another number of forwards ahead."""
    ahead = min(micro, ranks - 1 - rank if ahead is None else ahead)
    pairs = [("F", m) for m in range(ahead)]
    for m in range(micro):
        pairs += [("F", m + ahead)] if m + ahead < micro else []
        pairs += [("B", m)]
    return pairs


def backward_first(rank: int, ranks: int, micro: int) -> Pairs:
    """One backward, then one forward: with too few ahead, it waits for what it has not sent."""
    ahead = min(micro, ranks - 1 - rank)
    pairs = [("F", m) for m in range(ahead)]
    for m in range(micro):
        pairs += [("B", m)]
        pairs += [("F", m + ahead)] if m + ahead < micro else []
    return pairs


def all_forward(rank: int, ranks: int, micro: int) -> Pairs:
    return [(kind, m) for kind in "FB" for m in range(micro)]


def last_rank_reversed(rank: int, ranks: int, micro: int) -> Pairs:
    """The last rank starts with the last micro-batch."""
    pairs = ordered(rank, ranks, micro)
    return [(k, micro - 1 - m) for k, m in pairs] if 0 < rank == ranks - 1 else pairs


def endless(rank: int, ranks: int, micro: int) -> Iterator[tuple[str, int]]:
    yield from (("F", m % micro) for m in count())


def zero(rank: int, ranks: int, micro: int, *, late: int | None = None) -> Pairs:
    """ZB-H1, or with another number of W that are put off."""
    late = rank if late is None else late
    pairs: Pairs = []
    for kind, m in ordered(rank, ranks, micro):
        pairs += [("F", m)] if kind == "F" else [("I", m)]
        pairs += [("W", m - late)] if kind == "B" and m >= late else []
    return pairs + [("W", m) for m in range(max(0, micro - late), micro)]


def w_first(rank: int, ranks: int, micro: int) -> Pairs:
    """W before the I that the rank before waits for."""
    pairs = zero(rank, ranks, micro, late=1)
    for at in range(len(pairs) - 1):
        if pairs[at][0] == "I" and pairs[at + 1][0] == "W":
            pairs[at : at + 2] = pairs[at + 1], pairs[at]
    return pairs


def test_other_right_ways_are_right_too() -> None:
    def yielded(rank: int, ranks: int, micro: int) -> Iterator[Any]:
        yield from ([kind, m] for kind, m in ordered(rank, ranks, micro))

    assert grade.one_f_one_b(yielded)
    assert grade.zero_bubble(zero)


def test_what_stands_here_as_right_is_the_librarys() -> None:
    for ranks, micro in ((4, 8), (3, 2)):
        for ours, theirs in ((ordered, library_1f1b), (zero, library_zero)):
            for rank, works in enumerate(theirs(ranks, micro)):
                assert ours(rank, ranks, micro) == [(kind, m) for kind, _, m in works]
    assert max(most_held(gpipe(4, 8))) == 2 * max(most_held(library_1f1b(4, 8)))
    assert len(replay(gpipe(4, 8))) == 64


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.one_f_one_b] = rows(r"""r, n, m
memory | all_forward(r, n, m) | rank 0 holds 8 micro-batches at once, where 4 would do. That is
    GPipe. Go ahead only until the first gradient is back
memory | ordered(r, n, m, ahead=n) | a step takes .* 33 would do.* the ranks behind it decide
off by one | ordered(r, n, m, ahead=n - r) | rank 0 holds 5 micro-batches at once, where 4 would do
off by one | ordered(r, n, m, ahead=max(0, n - 2 - r)) | a step takes .* 33 would do
mistake | ordered(r, n, m, ahead=0) | a step takes 96 times a forward, and 33 would do
mistake | backward_first(r, n, m) | rank 3 does B\(3, 0\) before F\(3, 0\)
mistake | last_rank_reversed(r, n, m) | nobody can go on: .*rank 3 waits with
constant | ordered(0, 4, 8) | With 4 ranks and 8 micro-batches, a step takes 69 times
these sizes | ordered(r, 4, m) | With 2 ranks and 2 micro-batches, rank 1 holds 2
these sizes | ordered(r, n, min(m, 8)) | rank 0 never does \("B", 8\)
two ranks | ordered(r, 2, m, ahead=1 - min(r, 1)) | a step takes .* 33 would do
off by one | ordered(r, n, m)[:-1] | rank 0 never does \("B", 7\)
mistake | ordered(r, n, m) + [("B", 0)] | rank 0 does B\(0, 0\) twice
off by one | [("F", m)] + ordered(r, n, m) | you return .*; expected .* with m from 0 to 7
type | [kind for kind, m in ordered(r, n, m)] | expected a list of \("F", m\) or \("B", m\)
nothing | None | With 4 ranks and 8 micro-batches, on rank 0, you return None; expected a list
hangs | =endless | rank 0 never does \("B", 0\)
""")
WRONG[grade.zero_bubble] = rows(r"""r, n, m
mistake | zero(r, n, m, late=0) | a step takes 30 times .* 27 would do.* each W right after its I
memory | zero(r, n, m, late=m) | holds 8 micro-batches at once, and 1F1B never more than 4.*not all
memory | zero(r, n, m, late=n) | rank 0 holds 8 micro-batches
off by one | zero(r, n, m, late=max(0, r - 1)) | a step takes .* and 27 would do.* W fills the gaps
off by one | zero(r, n, m, late=r + 1) | rank 0 holds 5 micro-batches at once, and 1F1B never more
mistake | zero(r, n, m, late=n - 1 - r) | holds .* micro-batches at once
mistake | w_first(r, n, m) | rank 0 does W\(0, 7\) before I\(0, 7\)
mistake | [*zero(r, n, m)][::-1] | rank 0 does W\(0, 7\) before I\(0, 7\)
mistake | ordered(r, n, m) | you return .*; expected a list of \("F", m\) or \("I", m\) or
constant | zero(0, 4, 8) | With 4 ranks and 8 micro-batches, a step takes 54
these sizes | zero(r, 4, m) | With 2 ranks and 2 micro-batches
off by one | zero(r, n, m)[:-1] | never does \("W", 7\)
type | 3 | you return 3; expected a list of
nothing | None | you return None; expected a list of
hangs | =endless | rank 0 never does \("I", 0\)
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
