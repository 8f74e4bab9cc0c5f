"""The graders of the lab that takes DDP apart: mistakes get a diagnosis."""

from typing import Any

import torch

from course.graders import ddp as grade
from tests.course.verdicts import diagnosed


def length(spans: Any) -> float:
    return sum(end - start for start, end in spans)


def each_against_each(computing: Any, talking: Any) -> float:
    over = sum(max(0, min(b, d) - max(a, c)) for a, b in computing for c, d in talking)
    return length(talking) - over


def of_one_span(computing: Any, talking: Any) -> float:
    if not talking:
        return 0
    (start, end), busy = talking[0], computing[0][1] if computing else 0
    return max(0, end - max(start, busy))


def test_numbers_of_another_type_are_right() -> None:
    assert grade.factors(lambda samples: torch.tensor(samples) * len(samples) / sum(samples))


WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.exposed] = [
    ("mistake", lambda computing, talking: length(talking), "That is all communication"),
    ("mistake", lambda one, other: length(other) - length(one), "A difference of sums"),
    (
        "mistake",
        lambda one, other: length(other) - each_against_each(one, other),
        "That is what is hidden",
    ),
    ("mistake", each_against_each, "count no second twice"),
    ("constant", lambda computing, talking: 2, "you say 2 seconds; it is 0"),
    ("these sizes", of_one_span, r"Computing in \[.*you say . seconds?; it is"),
    (
        "unit",
        lambda one, other: 1000 * each_against_each(one, other),
        "you say 2,000 seconds; it is 2",
    ),
    ("type", lambda computing, talking: None, "you return None; expected a number of seconds"),
    ("type", lambda computing, talking: "2 s", "you return '2 s'; expected a number of seconds"),
]
WRONG[grade.factors] = [
    ("constant", lambda samples: [1.0] * len(samples), "a rank with more samples more"),
    ("mistake", lambda samples: [n / sum(samples) for n in samples], "2 times too small"),
    ("mistake", lambda samples: [sum(samples) / n for n in samples], "another gradient"),
    ("two ranks", lambda samples: [2 * n / sum(samples) for n in samples], r"\[4, 4, 4\] samples"),
    (
        "these sizes",
        lambda samples: [sum(map(bool, samples)) * n / sum(samples) for n in samples],
        r"\[5, 0, 1\] samples .* Count only the ranks",
    ),
    ("unit", lambda samples: samples, "another gradient than the whole batch"),
    ("type", lambda samples: [1.0], "return 1 factors; expected a factor for each rank"),
    ("type", lambda samples: 1.0, "return 1.0; expected a factor for each rank"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
