"""The graders of the lab on FSDP: mistakes get a diagnosis."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from course.graders import fsdp as grade
from tests.course.by_hand import fsdp as hand
from tests.course.verdicts import each_mistake, says


def test_another_way_to_gather_a_unit_is_right_too() -> None:
    assert grade.unit(hand.by_lists)


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
    assert grade.rows(rounded_up)


# ---- the global norm ----


def test_a_rank_that_leaves_out_the_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "TIMEOUT", 2)
    says("the same calls", grade.norm(hand.skips_without_gradients))


def test_another_way_to_the_norm_is_right_too() -> None:
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


def largest_two(blocks: list[int], prefetch: bool) -> int:
    return sum(sorted(blocks)[-1 - prefetch :])


def twice_the_largest(blocks: list[int], prefetch: bool) -> int:
    return (1 + prefetch) * max(blocks, default=0)


def test_another_way_to_the_peak_is_right_too() -> None:
    assert grade.peak(held(whole_at_a_time))


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.unit] = [
    (hand.unit(scatter=hand.summed), "is the sum over 3 ranks, .*: divide by their number"),
    (hand.unit(scatter=hand.divided_twice), "divided twice"),
    (hand.unit(scatter=hand.own_part), "part of its own gradient.*samples are missing"),
    (hand.unit(scatter=hand.wrong_owner), "that of rank 2's weights. Rank 0 keeps part 0"),
    (hand.unit(scatter=hand.all_of_it), "you return the whole gradient.*its own 4 numbers"),
    (hand.unit(scatter=hand.all_reduced), "all-reduce.*twice the bytes"),
    (hand.unit(scatter=hand.a_bit_off), "is off by up to 1.0e-03"),
    (hand.unit(scatter=hand.too_short), r"shape \[2\], expected \[4\]"),
    (hand.unit(gather=hand.own_repeated), "forward got are not those of all ranks"),
    (hand.never_resharded, "still in memory when backward begins. Reshard"),
    (hand.a_view_of_what_is_kept, "still in memory when backward begins. Reshard"),
    (hand.kept_for_later, "still in memory when all is over"),
    (hand.forward_on_the_shard, r"On rank \d forward got \[4\], expected all \[12\]"),
    (hand.never_forward, "forward was never called"),
    (hand.never_backward, "backward was never called"),
    (hand.stepped, "the shard has been changed"),
    (hand.returns_nothing, "you return None, expected the shard"),
]
MISTAKES[grade.rows] = [
    (overhanging, "There is no row 7: cut at 5"),
    (half_overhanging, "must not end before it begins"),
    (rounded_down, "Row 4 is nobody's: round up"),
    (even, r"as even as can be.*\[2, 2, 1, 0\] rows"),
    (lambda rows, ranks: rounded_up(rows, ranks)[:-1], "a rank without rows"),
    (lambda rows, ranks: rounded_up(rows, ranks)[::-1], r"Expected \[2, 2, 2, 2\] rows"),
    (lambda rows, ranks: None, "you return None; expected"),
    (lambda rows, ranks: [rows // ranks] * ranks, "expected .start, end. of each"),
]
MISTAKES[grade.norm] = [
    (hand.own_norm, "the norm of this rank's part alone"),
    (hand.sum_of_norms, "Norms do not add up: their squares do"),
    (hand.mean_of_norms, "the mean of the ranks' norms"),
    (hand.of_mean_squares, "do not average them"),
    (hand.squared, "That is its square"),
    (hand.root_of_norms, "sum their squares"),
    (hand.all_there, "rank 2 raised AttributeError"),
    (hand.in_place, "gradients have been changed"),
    (lambda gradients, comm: None, "you return None, expected a number"),
]
MISTAKES[grade.peak] = [
    (held(whole_at_a_time, shards=False), "the shards are held all the time"),
    (held(whole_at_a_time, root=False), "the root's own weights are whole until"),
    (held(lambda blocks, _: whole_at_a_time(blocks, False)), "with prefetch two units"),
    (held(lambda blocks, _: whole_at_a_time(blocks, True)), "without one"),
    (held(largest_two), "only if they follow each other"),
    (held(twice_the_largest), "not as large as the largest|only if they follow"),
    (held(lambda blocks, _: sum(blocks)), "not all units are whole"),
    (lambda units, ranks, prefetch: sum(units), "the whole model"),
    (lambda units, ranks, prefetch: None, "you say None; expected a number"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
