"""What a test asks of a grader."""

import re

from course.graders.verdict import Verdict


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text
