"""The ledgers of wrong answers: each is handed in, and each row fits its right answer."""

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from course.project.milestones import MILESTONES
from course.puzzles.catalog import PUZZLES
from tests.course.milestones import lesson
from tests.course.verdicts import solution
from tests.support.ledger import WRONG, Row, changed, sections


def tasks(folder: str, right: Callable[[str, str], str]) -> Iterator[tuple[str, str, list[Row]]]:
    """Each task's name with its ledger's, its right answer, and its rows."""
    for path in sorted((WRONG / folder).glob("*.txt")):
        for task, rows in sections(f"{folder}/{path.stem}").items():
            yield f"{path.stem}, {task}", right(path.stem, task), rows


def every() -> Iterator[tuple[str, str, list[Row]]]:
    yield from tasks("labs", solution)
    yield from tasks("lesson", lambda _, name: lesson(name))
    yield from ((name, PUZZLES[name].solution, rows) for name, rows in sections("puzzles").items())


def test_every_change_fits_in_one_place_of_the_right_answer() -> None:
    offenders = []
    for task, right, rows in every():
        for row in rows:
            try:
                if row.change and not row.change.startswith("="):
                    changed(right, row.change)
            except AssertionError as misfit:
                offenders.append(f"{task}: {misfit}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("change", "why"),
    [("c => x", "0 times, not once: c"), ("a => x", "2 times"), ("b", "not `old => new`: b")],
)
def test_what_does_not_fit_is_named(change: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        changed("a\nb\na\n", change)


def test_a_change_keeps_margins_and_breaks_lines_as_it_likes() -> None:
    right = "for x in y:\n    a(x,\n      y)\n"
    assert changed(right, r"a(x, y) => b()\nif x: \n    c() && for x in y => for x in z") == (
        "for x in z:\n    b()\n    if x:\n        c()\n"
    )
    assert changed(right, r"= a\nb") == "a\nb\n"


def test_every_milestone_has_its_rows_and_no_other_name_has() -> None:
    ledgers = [sections(f"lesson/{path.stem}") for path in (WRONG / "lesson").glob("*.txt")]
    assert sorted(name for each in ledgers for name in each) == sorted(MILESTONES)


def test_the_tests_of_every_lab_with_a_ledger_hand_it_in() -> None:
    labs = [path.stem for path in (WRONG / "labs").glob("*.txt")]
    tests = {lab: import_module(f"tests.course.test_{lab}") for lab in labs}
    offenders = [lab for lab in labs if not hasattr(tests[lab], "test_each_answer_is_judged")]
    assert not offenders, ", ".join(offenders)
