"""from_scratch passes the project's own grader: results, traffic and memory."""

import pytest

from course.project import report
from course.project.milestones import MILESTONES


@pytest.mark.claim("H1", "H3", "H4")
@pytest.mark.parametrize("name", MILESTONES)
def test_milestone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On one rank and on four test_parity tries them; on 1 to 5, what a lab's cell grades.
    single = not MILESTONES[name].train and name != "ring"
    monkeypatch.setattr(report, "RANKS", (1, 3) if single else (2, 3))
    verdict = report.grade(name, "from_scratch")
    assert verdict, verdict
