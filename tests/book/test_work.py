"""`make lab`: a folder to work in, of which nothing is ever overwritten."""

import ast
import sys
from pathlib import Path

import pytest

from course.project.milestones import MILESTONES
from course.project.report import lines
from tools import work


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with one lab, and the lesson."""
    course = tmp_path / "course"
    for folder in ("notebooks", "book", "lib"):
        (course / folder).mkdir(parents=True)
    (course / "notebooks" / "ring.ipynb").write_text("first")
    (course / "lib" / "from_scratch").symlink_to(work.ROOT / "lib" / "from_scratch")
    monkeypatch.setattr(work, "ROOT", course)
    monkeypatch.setattr(work, "WORK", course / "work")
    return course


def test_a_lab_is_copied_once_and_kept(place: Path) -> None:
    assert work.fill() == []
    source, mine = (place / each / "notebooks" / "ring.ipynb" for each in ("", "work"))
    assert mine.read_text() == "first"
    source.write_text("second")
    assert work.fill() == ["notebooks/ring.ipynb is up to date again."]
    mine.write_text("what I tried")
    assert work.fill() == []
    source.write_text("third")
    (said,) = work.fill()
    assert said.endswith("the new one is ring.newer.ipynb.")
    assert mine.read_text() == "what I tried"
    assert mine.with_suffix(".newer.ipynb").read_text() == "third"
    assert work.fill() == [], "it is said once"


def test_stubs_have_all_names_of_the_lesson_and_nothing_in_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fill()
    for name in work.LESSON:
        lesson, stub = (
            ast.parse((place / folder / f"{name}.py").read_text())
            for folder in ("lib/from_scratch", "work/mine")
        )
        defined = [
            [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            for tree in (lesson, stub)
        ]
        assert defined[0] == defined[1]
        for node in ast.walk(stub):
            if isinstance(node, ast.FunctionDef):
                assert ast.unparse(node.body[-1]) == "raise NotImplementedError"
                assert len(node.body) <= 2
    own = place / "work" / "mine" / "ddp.py"
    own.write_text("mine = 1\n")
    work.fill()
    assert own.read_text() == "mine = 1\n"


def test_the_grader_says_that_nothing_is_there_yet(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fill()
    monkeypatch.syspath_prepend(str(place / "work"))
    said = list(lines("mine"))
    assert len(said) == 1 + len(MILESTONES)
    assert all("Not yet" in each for each in said), said
    for name in [each for each in sys.modules if each.split(".")[0] == "mine"]:
        del sys.modules[name]
