"""Each exercise of each lab as the book shows it: the stub is not yet, the solution right, folded.

Wrong answers stand in the lab's ledger, and its tests have each refused; here they are counted.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

from course.ask.table import Exercise
from course.ask.verdict import Verdict
from tests.course.verdicts import KINDS, call_of, names, wrong_to_any
from tests.support.ledger import sections
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
def ran(lab: str) -> list[Any]:
    """The lab's cells with their outputs, as the book shows them."""
    found = executed(NOTEBOOKS / f"{lab}.ipynb")
    assert found is not None, f"{lab} has not run since it was changed: `make book`"
    return list(found.cells)


def verdict_of(lab: str, tag: str) -> Verdict:
    """The verdict that the lab's cell ends with."""
    (found,) = (each for each in ran(lab) if tag in each.metadata.get("tags", []))
    verdict: Verdict = eval(found.outputs[-1].data["text/plain"], {"Verdict": Verdict})
    return verdict


def test_every_lab_has_exercises_and_each_has_its_solution() -> None:
    for lab in LABS:
        assert tagged(lab, "exercise"), lab
        assert tagged(lab, "exercise") == tagged(lab, "solution")


def test_stubs_are_not_yet_and_no_failure() -> None:
    verdicts = {(lab, name): verdict_of(lab, f"exercise-{name}") for lab, name in EXERCISES}
    offenders = [f"{at}: {each}" for at, each in verdicts.items() if each.status != "not yet"]
    assert not offenders, "\n".join(offenders)


def test_solutions_are_right_and_told_what_they_proved_and_folded() -> None:
    offenders = []
    for lab, name in EXERCISES:
        verdict = verdict_of(lab, f"solution-{name}")
        metadata = cell(lab, f"solution-{name}").metadata
        folded = "hide-cell" in metadata["tags"] and metadata["jupyter"]["source_hidden"]
        if not (verdict and len(verdict.text) > 80 and folded):
            offenders.append(f"{lab}: {name}, folded: {folded}. {verdict}")
    assert not offenders, "\n".join(offenders)


def test_every_scoreboard_of_a_lab_has_its_rows() -> None:
    outputs = [
        (lab, str(each)) for lab in LABS for cell in ran(lab) for each in cell.get("outputs", [])
    ]
    offenders = [f"{lab}: {each}" for lab, each in outputs if "No scoreboard" in each]
    assert not offenders, "\n".join(offenders)


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
