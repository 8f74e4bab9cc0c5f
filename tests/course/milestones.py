"""Milestones that are handed in with a mistake, from the ledgers in `tests/wrong/lesson`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from course.ask.verdict import Verdict
from course.project import report
from course.project.milestones import MILESTONES
from tests.course.verdicts import says
from tests.support.ledger import Row, changed, sections
from tools.work import LESSON as FILES
from tools.work import ROOT

LESSON = ROOT / "lib" / "from_scratch"
SCENARIOS = [name for name, each in MILESTONES.items() if not each.train and name != "ring"]


def lesson(name: str) -> str:
    """The file that is a milestone's right answer."""
    return (LESSON / f"{MILESTONES[name].file}.py").read_text()


def write(folder: Path, **files: str) -> Path:
    """A reader's package of these files; beside them, the lesson's ring as `right`."""
    package = folder / "mine"
    package.mkdir()
    for given in ("__init__", "refusals"):
        shutil.copy(LESSON / f"{given}.py", package)
    shutil.copy(LESSON / "ring.py", package / "right.py")
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return package


def graded(name: str, text: str, place: Path, patch: pytest.MonkeyPatch, *ranks: int) -> Verdict:
    """The verdict on a milestone's file, beside the lesson's others, on such numbers of ranks."""
    files = {file: (LESSON / f"{file}.py").read_text() for file in FILES}
    files[MILESTONES[name].file] = text
    write(place, **{file: each.replace("from_scratch", "mine") for file, each in files.items()})
    patch.syspath_prepend(place)
    if ranks:
        patch.setattr(report, "RANKS", ranks)
        patch.setattr(report, "MORE", ())
    patch.setenv("COURSE_SEED", "5")
    return report.grade(name)


def diagnosed(*names: str) -> Any:
    """A test of all rows for these milestones; the last word of a kind is the number of ranks."""
    rows = {name: sections(f"lesson/{MILESTONES[name].file}")[name] for name in names}
    cases = [
        pytest.param(name, row, id=f"{name}-{place}-{row.kind}")
        for name in names
        for place, row in enumerate(rows[name])
    ]

    @pytest.mark.parametrize(("name", "row"), cases)
    def test(name: str, row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text, ranks = changed(lesson(name), row.change), int(row.kind.split()[-1])
        verdict = graded(name, text, tmp_path, monkeypatch, ranks)
        if row.kind.startswith("right"):
            assert verdict, verdict
        else:
            says(row.diagnosis, verdict)

    return test
