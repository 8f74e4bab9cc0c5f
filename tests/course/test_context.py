"""A cell of a lab with what it needs of the others: that is found, and nothing else runs."""

import ast
from typing import Any

import pytest

from course.ask.verdict import Verdict, Wrong, alone
from course.submissions.context import Pickled, _needed, _statements, values
from course.submissions.handed_in import Submission
from course.submissions.labs import TAG, Cell, grading, labs
from course.submissions.tasks import all_tasks, verdict
from minidist.formulas.inputs import Grid
from minidist.launch import pickling

EXERCISE = "exercise-bubble"
USES = "def my_bubble(ranks, micro, chunks):\n    return share(ranks, micro * chunks)"


def cells(*before: str, exercise: str = USES) -> list[Cell]:
    return [*(Cell((), source) for source in before), Cell((EXERCISE,), exercise)]


def graded(*before: str, exercise: str = USES) -> Verdict:
    return verdict(
        "pipelines: bubble", Submission(labs={"pipelines": cells(*before, exercise=exercise)})
    )


SHARE = "def share(ranks, works):\n    return (ranks - ONE) / (works + ranks - 1)"
RIGHT: dict[str, list[str]] = {
    "functions and numbers of earlier cells": ["ONE = 1", SHARE],
    "in any order": [SHARE, "print(ONE)", "ONE = 1"],
    "a cell of IPython": ["%matplotlib inline\nONE = 1\n!ls", SHARE],
    "what another exercise defines": ["ONE = 1", f"{SHARE}\n\n\ngrade.one_f_one_b(share)"],
    "beside cells that fail or never end": ["1 / 0", "while True: pass", "ONE = 1", "def (", SHARE],
    "made piece by piece": ["N = {}", "N['one'] = 1", SHARE.replace("ONE", "N['one']")],
    "an import": ["from math import isqrt as ONE", SHARE.replace("ONE", "ONE(1)")],
}


@pytest.mark.parametrize("how", RIGHT)
def test_an_exercise_has_what_it_uses(how: str) -> None:
    around = [
        each for n, cell in enumerate(cells(*RIGHT[how])[:-1]) for each in _statements("", cell, n)
    ]
    body = _statements("", cells()[-1], 9)
    names: dict[str, Any] = {"__name__": "__main__"}
    for statement in [*_needed(body, around), *body]:
        exec(compile(ast.Module([statement.node], []), how, "exec"), names)
    assert names["my_bubble"](4, 8, 1) == 3 / 11


def test_what_failed_before_is_told_where_its_name_is_missed() -> None:
    found = graded("1 / 0", "share = 1 / 0")
    assert found.status == "wrong"
    assert "NameError" in found.text
    assert found.text.endswith("Code cell 2 raised ZeroDivisionError: division by zero.")


def test_a_renamed_function_is_taken_from_the_learners_own_call() -> None:
    own = (
        "def share(ranks, micro, chunks):\n    return (ranks - 1) / (chunks * micro + ranks - 1)\n"
    )
    assert graded(exercise=f"{own}\n\ngrade.bubble_share(share)")


@pytest.mark.parametrize(
    ("source", "status", "text"),
    [
        ("pass", "not yet", "There is no my_bubble yet."),
        ("def my_bubble(", "wrong", "pipelines.ipynb, code cell 1, line 1: SyntaxError: '(' was "),
        ("x = 1\n1 / 0", "wrong", "pipelines.ipynb, code cell 1, line 2: ZeroDivisionError"),
        ("raise MemoryError", "wrong", "pipelines.ipynb, code cell 1, line 1: MemoryError."),
        (
            "import sys\n\nsys.exit()",
            "wrong",
            "raised SystemExit (pipelines.ipynb, code cell 1, line 3",
        ),
    ],
)
def test_a_cell_that_fails_is_told_with_its_line(source: str, status: str, text: str) -> None:
    found = graded(exercise=source)
    assert (found.status, text in found.text) == (status, True), found


def test_a_function_stays_pickled_until_it_reaches_a_rank() -> None:
    arguments, failed = alone(values, "pipelines", EXERCISE, cells("ONE = 1", SHARE))
    assert failed == {}
    (data,) = arguments
    function = Pickled(data)
    with pytest.raises(RuntimeError, match="called by its grader's own process"):
        function(4, 8, 1)
    assert pickling.loads(pickling.dumps(function))(4, 8, 1) == 3 / 11


def test_a_grid_is_given_as_what_it_is() -> None:
    grid = "from minidist.formulas.inputs import Grid\nimport numpy as np\n\nSEED = 12"
    own = f"{grid}\nCHOICE, SECONDS = Grid('ddp', 8), np.float64(2)"
    given, _ = alone(values, "capstone", "exercise-grid", [Cell(("exercise-grid",), own)])
    assert given == [Grid("ddp", 8), 2.0, 12]


def test_a_lab_without_the_cell_is_not_yet() -> None:
    with pytest.raises(NotImplementedError, match="no cell with the tag exercise-bubble"):
        values("pipelines", EXERCISE, [])
    with pytest.raises(Wrong, match="SyntaxError"):
        values("pipelines", EXERCISE, cells(exercise="def ("))


def test_every_exercise_of_every_lab_is_a_task() -> None:
    exercises = [(lab, tag) for lab, each in labs().items() for cell in each for tag in cell.tags]
    asked = [(lab, tag) for lab, tag in exercises if tag.startswith(TAG)]
    *tasks, stars = [name for name in all_tasks() if not name.startswith("project: ")]
    assert len(tasks) == len(asked)
    assert stars == "puzzles"
    assert all(ast.unparse(grading(*each)).startswith("grade.") for each in asked)
