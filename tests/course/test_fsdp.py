"""The graders of the lab on FSDP: mistakes get a diagnosis."""

import itertools
from collections.abc import Callable
from typing import Any

from course.graders import fsdp as grade
from tests.course.by_hand import fsdp as hand
from tests.course.verdicts import each_mistake, says


def test_ranks_that_make_other_calls_are_found() -> None:
    says("disagree on the call.*the same calls.*grader's", grade.unit(hand.from_rank_0_only))


# ---- uneven rows ----


def rounded_up(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def overhanging(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(r * each, (r + 1) * each) for r in range(ranks)]


def half_overhanging(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(r * each, min((r + 1) * each, rows)) for r in range(ranks)]


def rounded_down(rows: int, ranks: int) -> list[tuple[int, int]]:
    return [(r * (rows // ranks), (r + 1) * (rows // ranks)) for r in range(ranks)]


def even(rows: int, ranks: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise(round(rows * r / ranks) for r in range(ranks + 1)))


def test_a_rank_without_rows_may_say_so_in_any_way() -> None:
    def at_zero(rows: int, ranks: int) -> list[tuple[int, int]]:
        return [(a, b) if a < b else (0, 0) for a, b in rounded_up(rows, ranks)]

    assert grade.rows(at_zero)


def test_other_right_ways_are_right_too() -> None:
    assert grade.unit(hand.by_lists)
    assert grade.norm(hand.norm_of_norms)


# ---- the peak ----


def whole_at_a_time(blocks: list[int], prefetch: bool) -> int:
    return max((sum(blocks[i : i + 1 + prefetch]) for i in range(len(blocks))), default=0)


def held(
    whole: Callable[[list[int], bool], float], *, root: bool = True, shards: bool = True
) -> Any:
    def my_peak(units: list[int], ranks: int, prefetch: bool) -> float:
        kept = sum(units) / ranks if shards else 0
        return kept + (units[0] if root else 0) + whole(units[1:], prefetch)

    return my_peak


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.unit] = [
    (
        hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) * comm.ranks),
        "is the sum over 3 ranks, .*: divide by their number",
    ),
    (hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) / comm.ranks), "divided twice"),
    (
        hand.unit(scatter=lambda g, comm: g.chunk(comm.ranks)[comm.rank]),
        "part of its own gradient.*samples are missing",
    ),
    (
        hand.unit(scatter=lambda g, comm: hand.scatter(g.view(3, 4).flip(0).flatten(), comm)),
        "that of rank 2's weights. Rank 0 keeps part 0",
    ),
    (hand.unit(scatter=lambda g, _: g), r"shape \[12\], expected \[4\]: the rank keeps its own"),
    (hand.unit(scatter=lambda *_: None), "you return None, expected the shard"),
    (hand.unit(scatter=hand.all_reduced), "all-reduce.*twice the bytes"),
    (
        hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) + 1e-3),
        "is off by up to 1.0e-03",
    ),
    (
        hand.unit(gather=lambda shard, comm: shard.repeat(comm.ranks)),
        "forward got are not those of all ranks",
    ),
    (hand.never_resharded, "still in memory when backward begins. Reshard"),
    (hand.kept_for_later, "still in memory when all is over"),
    (
        lambda shard, forward, *_: forward(shard),
        r"On rank \d forward got \[4\], expected all \[12\]",
    ),
    (
        lambda shard, forward, _, comm: forward(hand.gather(shard, comm)),
        "backward was never called",
    ),
    (
        lambda shard, *rest: (hand.unit()(shard, *rest), shard.mul_(2))[0],
        "the shard has been changed",
    ),
]
MISTAKES[grade.rows] = [
    (overhanging, "There is no row 7: cut at 5"),
    (half_overhanging, "must not end before it begins"),
    (rounded_down, "Row 4 is nobody's: round up"),
    (even, r"as even as can be.*\[2, 2, 1, 0\] rows"),
    (lambda rows, ranks: rounded_up(rows, ranks)[:-1], "a rank without rows"),
    (lambda rows, ranks: rounded_up(rows, ranks)[::-1], r"Expected \[2, 2, 2, 2\] rows"),
    (lambda rows, ranks: [rows // ranks] * ranks, "expected .start, end. of each"),
]
MISTAKES[grade.norm] = [
    (lambda parts, comm: hand.squares(parts).sqrt(), "the norm of this rank's part alone"),
    (
        lambda parts, comm: hand.total(hand.squares(parts).sqrt(), comm),
        "Norms do not add up: their squares do",
    ),
    (
        lambda parts, comm: hand.total(hand.squares(parts).sqrt(), comm) / comm.ranks,
        "the mean of the ranks' norms",
    ),
    (lambda parts, comm: hand.norm(parts, comm) / comm.ranks**0.5, "do not average them"),
    (lambda parts, comm: hand.norm(parts, comm) ** 2, "That is its square"),
    (
        lambda parts, comm: hand.total(hand.squares(parts).sqrt(), comm).sqrt(),
        "sum their squares",
    ),
    (
        lambda parts, comm: hand.norm([g if g is None else g.mul_(2) for g in parts], comm),
        "gradients have been changed",
    ),
    (lambda parts, comm: None, "you return None, expected a number"),
]
MISTAKES[grade.peak] = [
    (held(whole_at_a_time, shards=False), "the shards are held all the time"),
    (held(whole_at_a_time, root=False), "the root's own weights are whole until"),
    (held(lambda blocks, _: whole_at_a_time(blocks, False)), "with prefetch two units"),
    (held(lambda blocks, _: whole_at_a_time(blocks, True)), "without one"),
    (held(lambda blocks, two: sum(sorted(blocks)[-1 - two :])), "only if they follow each other"),
    (
        held(lambda blocks, two: (1 + two) * max(blocks, default=0)),
        "not as large as the largest|only if they follow",
    ),
    (held(lambda blocks, _: sum(blocks)), "not all units are whole"),
    (lambda units, ranks, prefetch: sum(units), "the whole model"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
