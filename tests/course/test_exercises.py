"""Each exercise of each lab as the book shows it: the stub is not yet, the solution right, folded.

Wrong answers stand in the table of the lab's own file, which refuses each; here they are counted.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course.ask.table import Exercise
from course.ask.verdict import Verdict
from course.submissions.tasks import imports
from tests.course.verdicts import KINDS, tables, wrong_to_any
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


@cache
def names(lab: str) -> dict[str, Any]:
    """What the lab's cells import; a cell of an exercise needs no more."""
    found: dict[str, Any] = {"__name__": "__main__"}
    exec("\n".join(imports(lab)), found)
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


# ---- enough wrong answers ----

WRONG = dict(tables())


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES)
def test_each_exercise_has_eight_wrong_answers_of_four_kinds(lab: str, exercise: str) -> None:
    last = ast.parse(cell(lab, f"exercise-{exercise}").source).body[-1]
    assert isinstance(last, ast.Expr)
    assert isinstance(last.value, ast.Call)
    grader = eval(ast.unparse(last.value.func), dict(names(lab)))
    kinds = [kind for kind, *_ in WRONG[lab].get(grader, [])]
    if isinstance(grader, Exercise):
        table = grader.table()
        kinds += ["mistake" for _ in table.slips] + list(wrong_to_any(table))
    assert len(kinds) >= 8, kinds
    assert len(set(kinds)) >= 4, kinds
    assert set(kinds) <= set(KINDS)
