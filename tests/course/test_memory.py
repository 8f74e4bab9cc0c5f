"""The graders of the lab on memory: mistakes are diagnosed."""

import math
from typing import Any

import pytest

from course.graders import memory as grade
from tests.course.by_hand import memory as hand
from tests.course.verdicts import each_mistake, says


@pytest.mark.parametrize(
    "right",
    [
        lambda: grade.activations(hand.of_a_block()),
        lambda: grade.peak(hand.at_each_birth),
        lambda: grade.peak(hand.by_a_sweep),
        lambda: grade.checkpointed(hand.with_checkpoints()),
        lambda: grade.fewest(hand.ranks_for()),
    ],
)
def test_another_right_way_is_right_too(right: Any) -> None:
    verdict = right()
    assert verdict, verdict


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.activations] = [
    (hand.of_a_block(each=1), "Those are numbers; each takes 4 bytes"),
    (hand.of_a_block(each=2), "A number takes 4 bytes here, not 2"),
    (lambda b, t, w, h: hand.of_a_block()(1, 1, w, h), "That is one token's"),
    (hand.of_a_block(norms=0, attention=False), "The small ones are missing"),
    (hand.of_a_block(attention=False), "Attention also keeps a number"),
    (hand.of_a_block(norms=1), "two LayerNorms"),
    (hand.of_a_block(norms=0), "A LayerNorm also keeps two numbers"),
    (hand.of_a_block(wide=15), "One tensor is missing"),
    (hand.of_a_block(wide=17), "a sum keeps nothing"),
    (hand.of_a_block(wide=19), "views of one tensor"),
    (hand.of_a_block(pairs=True), "never keeps its scores"),
    (hand.of_a_block(wide=34), r"off by \+18 tensors"),
    (lambda *_: None, "expected a number of bytes"),
]
MISTAKES[grade.peak] = [
    (lambda lives: sum(n for *_, n in lives), "they do not all live at once"),
    (lambda lives: max([n for *_, n in lives], default=0), "the largest tensor"),
    (hand.born_before_freed, "gone before the next is born"),
    (lambda lives: None, "you say None"),
]
MISTAKES[grade.checkpointed] = [
    (lambda layers, every, kept, passed: layers * kept, "without checkpoints"),
    (lambda n, every, kept, passed: math.ceil(n / every) * passed, "That is after forward"),
    (lambda n, every, kept, passed: min(n, every) * kept, "all the others wait"),
    (hand.with_checkpoints(shared=False), "in it twice"),
    (hand.with_checkpoints(inside=False), "all its blocks keep"),
    (hand.as_if_all_segments_were_full, "the shorter one behind it is done with"),
    (hand.with_checkpoints(shortest=False), "fewer blocks than that|the shorter one"),
    (lambda n, every, kept, passed: "all", "expected a number of bytes"),
]
MISTAKES[grade.fewest] = [
    (hand.ranks_for(up=False), "Round up"),
    (hand.ranks_for(beside_too=False), "needs room too"),
    (hand.ranks_for(spare=1), "One rank less would do"),
    (lambda p, limit, beside, *_: None, "With enough ranks"),
    (lambda p, limit, beside, *_: 0 if limit > beside else None, "from 1 on, or None"),
    (
        lambda p, limit, beside, policy, o: hand.ranks_for()(p, limit, beside, policy, o) or 10**6,
        "no room for any slice",
    ),
    (lambda *_: "many", "expected a whole number of ranks"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
