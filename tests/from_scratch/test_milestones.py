"""from_scratch passes the project's own grader: training, traffic and memory."""

from pathlib import Path

import pytest

from course.project import report
from course.project.milestones import MILESTONES, Milestone
from course.project.report import ring, scenarios, trains
from course.project.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RANKS", (1, 3))  # a lab's scoreboard tries it on four
    verdict = scenarios("from_scratch", name)
    assert verdict, verdict


def test_ring() -> None:
    verdict = ring("from_scratch")
    assert verdict, verdict


LABS = "".join(each.read_text() for each in Path(__file__).parents[2].glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda each: each.name)
def test_milestone(milestone: Milestone, monkeypatch: pytest.MonkeyPatch) -> None:
    # A cell of a lab tries it on 1 to 5 ranks; tests/course/test_exercises.py reads the verdict.
    if f'project.grade(\\"{milestone.name}\\", \\"from_scratch\\")' in LABS:
        monkeypatch.setattr(report, "RANKS", (2, 3))
    verdict = trains("from_scratch", milestone)
    assert verdict, verdict
