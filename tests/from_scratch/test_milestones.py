"""from_scratch passes the project's own grader: training, traffic and memory."""

import pytest

from course.project.milestones import MILESTONES, Milestone
from course.project.report import ring, trains


def test_ring() -> None:
    verdict = ring("from_scratch")
    assert verdict, verdict


@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda each: each.name)
def test_milestone(milestone: Milestone) -> None:
    verdict = trains("from_scratch", milestone)
    assert verdict, verdict
