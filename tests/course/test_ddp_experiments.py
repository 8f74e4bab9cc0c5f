"""The graders of the lab that takes DDP apart: mistakes get a diagnosis."""

from typing import Any

import torch

from course.chapters.ddp import exercises as grade
from tests.course.verdicts import diagnosed


def test_numbers_of_another_type_are_right() -> None:
    assert grade.factors(lambda samples: torch.tensor(samples) * len(samples) / sum(samples))


WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
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
    ("input", lambda samples: [samples.pop()] * 2, "what you are given is changed"),
    ("type", lambda samples: [1.0], "return 1 factors; expected a factor for each rank"),
    ("type", lambda samples: 1.0, "return 1.0; expected a factor for each rank"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
