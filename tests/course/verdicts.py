"""Wrong answers to the exercises, and what their graders must say of them.

Exercises by table bring their slips, and share `wrong_to_any`. For the others each lab's tests have
a table `WRONG`: grader → [(kind, function, diagnosis)]. A function is as a learner writes it, or a
tuple of them if the exercise asks for several; the diagnosis is a regular expression. `reader`
reads such tables from text.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cloudpickle import register_pickle_by_value

from course.ask.table import Exercise, Table
from course.ask.verdict import Verdict, Wrong

KINDS = {
    "mistake": "an honest mistake with a diagnosis of its own",
    "constant": "an answer that does not look at its arguments",
    "these sizes": "right only for the sizes or cases that one thinks of",
    "two ranks": "right only for one number of ranks, such as two",
    "traffic": "the right result by too much traffic or too many calls",
    "gathers all": "the right result by a gather of everything",
    "torch's own": "the right result by a call that does the whole exercise",
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
Wrongs = Mapping[Any, Sequence[tuple[str, Any, str]]]


def reader(names: dict[str, Any]) -> Callable[[str], list[tuple[str, Any, str]]]:
    """Read tables whose answers use a module's names: arguments, then kind | answer | diagnosis.

    An answer is what a function of these arguments returns, or the function itself: after "=", or
    where no arguments are given. An indented line belongs to the one before.
    """

    def rows(table: str) -> list[tuple[str, Any, str]]:
        found = []
        arguments, *lines = re.sub(r"\n +", " ", table.rstrip()).split("\n")
        for line in lines:
            kind, answer, diagnosis = line.split(" | ", 2)
            plain = answer.startswith("=") or not arguments
            source = answer.removeprefix("=") if plain else f"lambda {arguments}: {answer}"
            found.append((kind, eval(source, names), diagnosis))
        return found

    return rows


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text


def _raises(*_: object) -> None:
    raise ZeroDivisionError


def each_wrong(tables: Wrongs) -> pytest.MarkDecorator:
    """Every (grader, answer, diagnosis); that a function raises is wrong to every grader."""
    cases = []
    answers = [answer for table in tables.values() for _, answer, _ in table]
    theirs = {getattr(answer, "__module__", "") for answer in answers}
    for name in {__name__, *theirs} - {grader.__module__ for grader in tables}:
        if re.match(r"tests\.course\.(test_|verdicts)", name):
            register_pickle_by_value(sys.modules[name])  # or each process would import pytest
    for grader, table in tables.items():
        (_, first, _), *_ = table
        raises = (_raises,) * len(first) if isinstance(first, tuple) else _raises
        rows = [*table, ("raises", raises, "raised ZeroDivision")]
        for place, (kind, answer, diagnosis) in enumerate(rows):
            name = f"{grader.__name__}-{place}-{kind}"
            cases.append(pytest.param(grader, answer, diagnosis, id=name))
    return pytest.mark.parametrize(("grader", "answer", "diagnosis"), cases)


def refuses(grader: Any, answer: Any, diagnosis: str) -> None:
    """The grader calls the answer wrong, and says why."""
    if isinstance(grader, Exercise):  # in this process, which is faster
        with pytest.raises(Wrong, match=diagnosis):
            grader.table().check(answer)
    else:
        says(diagnosis, grader(*answer) if isinstance(answer, tuple) else grader(answer))


def diagnosed(tables: Wrongs) -> Any:
    """A test of every row: the grader calls the answer wrong, and says why."""

    @each_wrong(tables)
    def test(grader: Any, answer: Any, diagnosis: str) -> None:
        refuses(grader, answer, diagnosis)

    return test


def tables() -> Iterator[tuple[str, Wrongs]]:
    """(lab, its table) of every lab."""
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb")):
        module = import_module(f"tests.course.test_{path.stem}")
        yield path.stem, getattr(module, "WRONG", {})


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
