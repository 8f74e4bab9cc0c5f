"""The graders of the lab on DDP: mistakes get a diagnosis."""

import os
from typing import Any

import pytest

import minidist
from course.graders import ddp as grade
from minidist import ReduceOp
from tests.course.by_hand import ddp as hand
from tests.course.verdicts import each_mistake, says


@pytest.mark.parametrize(
    "way",
    [
        hand.in_another_order(lambda parameters: parameters[::-1]),
        hand.by_tensor_hooks,
    ],
)
def test_another_right_way_is_right_too(way: Any) -> None:
    assert grade.by_hand(way)


def test_a_rank_that_waits_for_the_others_in_vain_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grade, "TIMEOUT", 3)
    says("rank 0 did not end within 3 s.*the same calls", grade.by_hand(hand.from_rank_0_only))


def nothing(parameter: Any) -> None:
    pass


# ---- buckets ----


def fill(sizes: list[int], first: int, cap: int, *, forward: bool = False) -> list[list[int]]:
    buckets: list[list[int]] = [[]]
    for number in range(len(sizes)) if forward else reversed(range(len(sizes))):
        limit = first if len(buckets) == 1 else cap
        if sum(sizes[i] for i in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def never_over(sizes: list[int], first: int, cap: int) -> list[list[int]]:
    buckets: list[list[int]] = [[]]
    for number in reversed(range(len(sizes))):
        limit = first if len(buckets) == 1 else cap
        if buckets[-1] and sum(sizes[i] for i in [*buckets[-1], number]) > limit:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def test_another_way_to_fill_them_is_right_too() -> None:
    assert grade.buckets(fill)


# ---- exposed communication ----


def length(spans: Any) -> float:
    return sum(end - start for start, end in spans)


def each_against_each(computing: Any, talking: Any) -> float:
    over = sum(max(0, min(b, d) - max(a, c)) for a, b in computing for c, d in talking)
    return length(talking) - over


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.by_hand] = [
    (
        hand.by_hand(average=lambda p: minidist.all_reduce(p.grad)),
        "step 1 .* is the sum over 3 ranks, .*: divide by their number",
    ),
    (
        hand.by_hand(average=lambda p: minidist.all_reduce(p.grad.div_(3), ReduceOp.AVG)),
        "divided twice",
    ),
    (
        hand.by_hand(average=lambda p: setattr(p, "grad", p.grad / 3)),
        "its own, divided, and not summed",
    ),
    (
        hand.by_hand(average=lambda p: minidist.all_reduce(p.data, ReduceOp.AVG)),
        "changed 0.weight itself.*reduce parameter.grad",
    ),
    (
        hand.by_hand(average=lambda p: setattr(p, "grad", None)),
        "0.weight has no gradient on rank 0",
    ),
    (hand.by_hand(average=nothing), "0.weight is still its own.*every parameter"),
    (hand.by_hand(broadcast=nothing), "rank 1 starts with a 0.weight .*broadcast"),
    (
        hand.by_hand(broadcast=lambda p: minidist.broadcast(p.detach(), 2)),
        "rank 0 starts with a 0.weight .* not rank 0's",
    ),
    (
        hand.by_hand(broadcast=lambda p: minidist.broadcast(p, 0)),
        "requires grad.*parameter.detach()",
    ),
    (hand.in_another_order(hand.rotated), "disagree on tensor's shape.*in the same order"),
    (
        hand.in_another_order(hand.swapped),
        "another one than its peers have.*same order everywhere",
    ),
    (hand.once, "in step 2 of 2 rank 0's gradient of 0.weight is still its own"),
    (lambda model: os._exit(3), "left with exit code 3"),
]
MISTAKES[grade.buckets] = [
    (lambda s, first, cap: fill(s, first, cap, forward=True), "go through them in reverse"),
    (lambda s, first, cap: fill(s, cap, cap), "the first bucket has a cap of its own"),
    (lambda s, first, cap: fill(s, first, first), "it is not full: its cap is"),
    (never_over, "it is not full: its cap is"),
    (lambda s, first, cap: fill(s, first, cap)[:-1], "parameter 0 is in 0 buckets"),
    (lambda s, first, cap: [*fill(s, first, cap), [0]], "parameter 0 is in 2 buckets"),
    (lambda s, first, cap: [list(range(len(s)))[::-1]], "full before its last parameter"),
    (lambda s, first, cap: None, "you return None; expected a list of lists"),
]
MISTAKES[grade.exposed] = [
    (lambda computing, talking: length(talking), "That is all communication"),
    (lambda computing, talking: length(talking) - length(computing), "A difference of sums"),
    (lambda computing, talking: 6, "That is what is hidden"),
    (each_against_each, "count no second twice"),
    (lambda computing, talking: None, "you return None; expected a number of seconds"),
]
MISTAKES[grade.factors] = [
    (lambda samples: [1.0] * len(samples), "a rank with more samples more"),
    (lambda samples: [n / sum(samples) for n in samples], "2 times too small"),
    (lambda samples: [sum(samples) / n for n in samples], "another gradient"),
    (lambda samples: [1.0], "expected a factor for each rank"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
