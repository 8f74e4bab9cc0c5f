"""What a test asks of a grader."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from course.graders.verdict import Verdict


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text


def each_mistake(tables: Mapping[Any, Sequence[tuple[Any, str]]]) -> pytest.MarkDecorator:
    """Every (grader, mistake, diagnosis)."""
    cases = [
        pytest.param(grader, mistake, diagnosis, id=f"{grader.__name__}-{number}")
        for grader, table in tables.items()
        for number, (mistake, diagnosis) in enumerate(table)
    ]
    return pytest.mark.parametrize(("grader", "mistake", "diagnosis"), cases)
