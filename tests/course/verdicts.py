"""What a test asks of a grader."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from course.graders.verdict import Verdict


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text


def _raises(*_: object) -> None:
    raise ZeroDivisionError


def each_mistake(tables: Mapping[Any, Sequence[tuple[Any, str]]]) -> pytest.MarkDecorator:
    """Every (grader, mistake, diagnosis); that a function raises is a mistake to every grader."""
    cases = []
    for grader, table in tables.items():
        (first, _), *_ = table
        raises = (_raises,) * len(first) if isinstance(first, tuple) else _raises
        for number, (mistake, diagnosis) in enumerate([*table, (raises, "raised ZeroDivision")]):
            name = f"{grader.__name__}-{number}"
            cases.append(pytest.param(grader, mistake, diagnosis, id=name))
    return pytest.mark.parametrize(("grader", "mistake", "diagnosis"), cases)
