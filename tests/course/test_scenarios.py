"""The milestones after FSDP: a lesson with a mistake in it gets a diagnosis."""

from pathlib import Path

import pytest

from course.project import report
from course.project.milestones import MILESTONES
from tests.course.milestones import SCENARIOS, diagnosed, graded, lesson
from tools.work import stub

test_a_mistake_in_the_lesson_is_told = diagnosed(*SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stub_is_no_mistake_yet(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = graded(name, stub(lesson(name)), tmp_path, monkeypatch, 2)
    assert verdict.status == "not yet"
    assert f"in mine/{MILESTONES[name].file}.py, line" in verdict.text


def test_a_name_is_that_of_its_file_too_and_has_a_scoreboard() -> None:
    for name in SCENARIOS:
        assert report.names_of(MILESTONES[name].file) == [name]
    rows = report.scoreboard("tensor parallelism", "from_scratch").data.splitlines()
    assert rows[0] == "| code of | messages | bytes sent |"
    assert rows[2].startswith("| from_scratch | 96 | ")
