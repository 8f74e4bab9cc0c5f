"""Each exercise of each lab as the book shows it: the stub is not yet, the solution right, folded.

Wrong answers stand in the lab's ledger, and its tests have each refused; here they are counted.
"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course.ask.table import Exercise
from course.ask.verdict import Verdict
from tests.course.verdicts import KINDS, call_of, names, wrong_to_any
from tests.support.ledger import WRONG, sections
from tools.execute import executed

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@cache
def code(lab: str) -> list[Any]:
    cells = nbformat.read(NOTEBOOKS / f"{lab}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def tagged(lab: str, kind: str) -> list[tuple[str, str]]:
    """(lab, name) of each cell with a tag such as "exercise-ring"."""
    tags = (tag for cell in code(lab) for tag in cell.metadata.get("tags", []))
    return [(lab, tag.removeprefix(f"{kind}-")) for tag in tags if tag.startswith(f"{kind}-")]


LABS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
EXERCISES = [each for lab in LABS for each in tagged(lab, "exercise")]


def cell(lab: str, tag: str) -> Any:
    (found,) = (cell for cell in code(lab) if tag in cell.metadata.get("tags", []))
    return found


def verdict_of(lab: str, tag: str) -> Verdict:
    """What the lab's cell says at its end, as the book shows it."""
    ran = executed(NOTEBOOKS / f"{lab}.ipynb")
    assert ran is not None, "its cells have not run since they were changed: `make book`"
    (found,) = (each for each in ran.cells if tag in each.metadata.get("tags", []))
    verdict: Verdict = eval(found.outputs[-1].data["text/plain"], {"Verdict": Verdict})
    return verdict


def test_every_lab_has_exercises_and_each_has_its_solution() -> None:
    for lab in LABS:
        assert tagged(lab, "exercise"), lab
        assert tagged(lab, "exercise") == tagged(lab, "solution")


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES)
def test_the_stub_is_not_yet_and_no_failure(lab: str, exercise: str) -> None:
    verdict = verdict_of(lab, f"exercise-{exercise}")
    assert verdict.status == "not yet"
    assert not verdict


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES)
def test_the_solution_is_right_and_told_what_it_proved_and_folded(lab: str, exercise: str) -> None:
    verdict = verdict_of(lab, f"solution-{exercise}")
    assert verdict, verdict
    assert len(verdict.text) > 80
    found = cell(lab, f"solution-{exercise}")
    assert "hide-cell" in found.metadata["tags"]
    assert found.metadata["jupyter"]["source_hidden"]


@pytest.mark.parametrize("lab", LABS)
def test_every_scoreboard_of_a_lab_has_its_rows(lab: str) -> None:
    ran = executed(NOTEBOOKS / f"{lab}.ipynb")
    assert ran is not None
    outputs = [str(each) for cell in ran.cells for each in cell.get("outputs", [])]
    assert [each for each in outputs if "No scoreboard" in each] == []


def test_each_exercise_has_eight_wrong_answers_of_four_kinds() -> None:
    offenders = []
    for lab, exercise in EXERCISES:
        known = sections(f"labs/{lab}").get(exercise, [])
        kinds = [row.kind for row in known if row.kind != "right"]
        call = call_of(cell(lab, f"exercise-{exercise}").source)
        grader = eval(ast.unparse(call.func), names(lab))
        if isinstance(grader, Exercise):
            table = grader.table()
            kinds += ["mistake" for _ in table.slips] + list(wrong_to_any(table))
        if len(kinds) < 8 or len(set(kinds)) < 4 or not set(kinds) <= set(KINDS):
            offenders.append(f"{lab}: {exercise}: {', '.join(kinds)}")
    assert not offenders, "\n".join(offenders)


def test_every_ledger_is_of_a_lab_whose_tests_hand_it_in() -> None:
    for path in (WRONG / "labs").glob("*.txt"):
        exercises = {name for _, name in tagged(path.stem, "exercise")}
        assert {*sections(f"labs/{path.stem}")} <= exercises, path
        assert import_module(f"tests.course.test_{path.stem}").test_a_wrong_answer_is_diagnosed
