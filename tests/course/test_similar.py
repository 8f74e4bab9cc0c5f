"""Solutions that are alike are found whatever their names; a stub is like nobody's."""

import re

from course.submissions.handed_in import Submission
from course.submissions.labs import Cell, stubs
from course.submissions.similar import fingerprints, groups
from tests.support.submissions import RING
from tools.work import ROOT, stub

PIPELINE = (ROOT / "lib" / "from_scratch" / "pipeline.py").read_text()


def alike(**rings: str) -> list[str]:
    found = groups({name: Submission({"ring.py": text.encode()}) for name, text in rings.items()})
    return [f"{group.what}: {', '.join(group.learners)}" for group in found]


def test_a_copy_is_found_under_other_names_and_comments() -> None:
    renamed = re.sub(r"\b(rank|chunk|tensor)\b", r"my_\1", PIPELINE)
    assert fingerprints(renamed) == fingerprints(PIPELINE)
    assert alike(anna=PIPELINE, ben=f"# mine\n{renamed}", cleo=RING) == [
        "ring.py: anna, ben",
        "ring.py: cleo, the lesson",
    ]


def test_lines_that_are_no_python_do_not_count() -> None:
    tag = next(iter(stubs("ring")))
    cells = {"anna": RING, "ben": f"%matplotlib inline\n!ls\n{RING}"}
    labs = {name: {"ring": [Cell((tag,), source)]} for name, source in cells.items()}
    (group,) = groups({name: Submission(labs=lab) for name, lab in labs.items()})
    assert (group.learners, group.share) == (["anna", "ben"], 1)


def test_what_nobody_has_written_is_like_nothing() -> None:
    assert alike(anna=stub(RING), ben=stub(RING), cleo="def (", dora="x = 1") == []
