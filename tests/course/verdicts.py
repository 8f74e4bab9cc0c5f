"""Wrong answers to the exercises, and what their graders must say of them.

They stand in the ledgers `tests/wrong/labs`, a section for each exercise: changes to the solution
that its lab shows, or after "=" another answer. Exercises by table bring their slips, too, and
share `wrong_to_any`.
"""

import ast
import os
import re
import shutil
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.ask.table import Exercise, Table
from course.ask.verdict import Verdict, Wrong
from course.submissions.labs import imports, labs, python
from tests.support.ledger import Row, changed, sections

KINDS = {
    "mistake": "an honest mistake with a diagnosis of its own",
    "constant": "an answer that does not look at its arguments",
    "these sizes": "right only for the sizes or cases that one thinks of",
    "two ranks": "right only for one number of ranks, such as two",
    "traffic": "the right result by too much traffic or too many calls",
    "gathers all": "the right result by a gather of everything",
    "torch's own": "the right result by a call that does the whole exercise",
    "another name": "the lesson, imported under a name that is not in the text",
    "memory": "the right result, and more is held than needed",
    "unit": "elements for bytes, bits for bytes, one rank's for all ranks'",
    "off by one": "one too many or too few, or counted from 1",
    "type": "an answer of another type",
    "nothing": "no answer",
    "input": "an input is overwritten, or the result is not written where it belongs",
    "hangs": "ranks that wait for each other, or a loop without end",
    "raises": "it raises, on every rank or on one, always or sometimes",
    "order": "ranks that do not make the same calls in the same order",
}

CHAPTERS = Path(__file__).parents[2] / "lib" / "course" / "chapters"
RAISES = Row("raises", "= lambda *_: 1 / 0", "raised ZeroDivision")  # wrong to every grader


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text


def refuses(grader: Any, answer: tuple[Any, ...], diagnosis: str) -> None:
    """The grader calls the answer wrong, and says why."""
    if isinstance(grader, Exercise):  # in this process, which is faster
        with pytest.raises(Wrong, match=diagnosis):
            grader.table().check(*answer)
    else:
        says(diagnosis, grader(*answer))


def accepts(grader: Any, answer: tuple[Any, ...], told: str) -> None:
    """The grader calls the answer right, and says what is to be said of it."""
    if isinstance(grader, Exercise):
        verdict = Verdict("right", grader.table().check(*answer))
    else:
        verdict = grader(*answer)
    assert verdict, verdict
    assert re.search(told, verdict.text), verdict.text


@cache
def names(lab: str) -> dict[str, Any]:
    """What a lab's cells import, its solutions, and what answers use besides."""
    found = {"__name__": "__main__", "np": np, "os": os, "shutil": shutil, "time": time}
    exec("\n".join(map(ast.unparse, imports(lab))), found)
    for task in sections(f"labs/{lab}"):
        code = ast.parse(solution(lab, task))
        code.body = [node for node in code.body if isinstance(node, ast.FunctionDef)]
        exec(compile(code, f"{lab}.ipynb", "exec"), found)
    return found


def solution(lab: str, task: str) -> str:
    """The cell of a lab that solves an exercise."""
    tag = f"solution-{task}"
    (found,) = (python(cell) for cell in labs()[lab] if tag in cell.tags)
    return found


def call_of(cell: str) -> ast.Call:
    """The call of the grader with which a cell ends."""
    last = ast.parse(cell).body[-1]
    assert isinstance(last, ast.Expr)
    assert isinstance(last.value, ast.Call)
    return last.value


def handed_in(lab: str, task: str, change: str) -> tuple[Any, tuple[Any, ...]]:
    """The grader of an exercise, and what it is called with: the solution, changed or replaced."""
    plain = change.startswith("=")
    cell, space = solution(lab, task), dict(names(lab))
    code = ast.parse(cell if plain else changed(cell, change))
    del code.body[-1]
    exec(compile(code, f"{lab}.ipynb", "exec"), space)
    call = call_of(cell)
    given = [change.removeprefix("=").strip()] if plain else map(ast.unparse, call.args)
    answer = eval(f"({', '.join(given)},)", space)
    if plain and len(answer) < len(call.args):
        answer *= len(call.args)  # `RAISES`, where several functions are asked for
    return eval(ast.unparse(call.func), space), answer


def diagnosed(lab: str) -> Any:
    """A test of every row in a lab's ledger: the grader calls the answer wrong, and says why."""
    cases = []
    for task, rows in sections(f"labs/{lab}").items():
        name = ast.unparse(call_of(solution(lab, task)).func).removeprefix("grade.")
        every = rows if all(row.kind == "right" for row in rows) else [*rows, RAISES]
        for place, row in enumerate(every):
            cases.append(pytest.param(task, row, id=f"{name}-{place}-{row.kind}"))
    assert cases, f"tests/wrong/labs/{lab}.txt has no rows"

    @pytest.mark.parametrize(("task", "row"), cases)
    def test(task: str, row: Row) -> None:
        grader, answer = handed_in(lab, task, row.change)
        if row.kind == "right":
            accepts(grader, answer, row.diagnosis)
        else:
            refuses(grader, answer, row.diagnosis)

    return test


# ---- exercises by table ----


def by_table() -> list[Exercise]:
    """All of them."""
    names = sorted(path.parent.name for path in CHAPTERS.glob("*/exercises.py"))
    modules = [import_module(f"course.chapters.{name}.exercises") for name in names]
    return [each for one in modules for each in vars(one).values() if isinstance(each, Exercise)]


def wrong_to_any(table: Table) -> dict[str, Callable[..., Any]]:
    """A kind → an answer of this kind that is wrong whatever the table asks."""
    first, known = table.cases[0], table.cases[: len(table.cases) // 3]

    def raises(*case: Any) -> Any:
        return table.right(*case) if case in known else 1 / 0

    def empties(*case: Any) -> Any:
        answer = table.right(*case)
        for argument in case:
            if isinstance(argument, list):
                argument.append(argument)
        return answer

    found = {
        "constant": lambda *_: table.right(*first),
        "these sizes": lambda *case: table.right(*(case if case in known else first)),
        "type": lambda *case: [[table.right(*case)]],
        "raises": raises,
        "nothing": lambda *_: None,
    }
    if any(isinstance(argument, list) for case in table.cases for argument in case):
        found["input"] = empties
    if isinstance(table.right(*first), int | float):
        found["unit"] = lambda *case: 8 * table.right(*case)
        found["off by one"] = lambda *case: table.right(*case) + 1
    return found
