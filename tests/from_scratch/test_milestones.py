"""from_scratch passes the project's own grader: results, traffic and memory."""

import pytest

from course.project import report
from course.project.milestones import MILESTONES


@pytest.mark.claim("H1", "H3", "H4")
@pytest.mark.parametrize("name", MILESTONES)
def test_milestone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What trains, test_parity tries on one to four ranks; a lab's cell grades on six numbers.
    others = (2, 3) if name == "ring" else (1, 3)
    monkeypatch.setattr(report, "RANKS", (3,) if MILESTONES[name].train else others)
    monkeypatch.setattr(report, "MORE", () if MILESTONES[name].train else (8,))
    verdict = report.grade(name, "from_scratch")
    assert verdict, verdict
