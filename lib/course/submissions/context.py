"""A lab's cell with what it needs of the others, and no more.

A learner's function may call what earlier exercises or cells of the learner's own define. These are
run, in the order of the notebook, and nothing else is: the lab's measurements take minutes. What
fails among them is skipped; if the exercise then misses a name, that is told.
"""

from __future__ import annotations

import ast
import symtable
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from course.ask.verdict import Wrong, told
from course.submissions.labs import Cell, grading, imports, python
from minidist.launch import pickling


class Statement(NamedTuple):
    """A statement of a cell, with the names that it gives a value to and those that it uses."""

    node: ast.stmt
    cell: int  # counted from 1 among the cells with code
    gives: set[str]
    uses: set[str]


def values(lab: str, tag: str, cells: list[Cell]) -> tuple[list[Any], dict[str, str]]:
    """What a learner's cell gives to the grader, each as data or as its pickle; run it on a rank.

    Also the names that nothing gave a value to because what should have failed, and how.

    Raises:
        NotImplementedError: there is no such cell, or it does not define what it should.
        Wrong: it raised something; says in which line.
    """
    own = [number for number, cell in enumerate(cells, 1) if tag in cell.tags]
    if not own:
        raise NotImplementedError(f"The notebook has no cell with the tag {tag}.")
    here = own[-1]
    body = _statements(lab, cells[here - 1], here, must=True)
    around = [Statement(node, 0, *_names(node)) for node in imports(lab)]
    for number, cell in enumerate(cells[: here - 1], 1):
        around += _statements(lab, cell, number)
    names = vars(sys.modules["__main__"])
    failed = dict[str, str]()
    for statement in _needed(body, around):
        try:
            exec(_compiled(statement, lab), names)
        except Exception as error:
            why = f"Code cell {statement.cell} raised {told(error)}."
            failed |= dict.fromkeys(statement.gives, why)
    for statement in body:
        _run(statement, lab, names)
    return [_value(argument, names) for argument in _arguments(lab, tag, cells[here - 1])], failed


def _statements(lab: str, cell: Cell, number: int, must: bool = False) -> list[Statement]:
    """The statements of a cell but for questions to a grader; none if it is no Python."""
    try:
        source = python(cell)
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        if not must:
            return []
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        raise Wrong(f"{_place(lab, number)}{line}: {type(error).__name__}: {said}.") from None
    nodes = [node for node in tree.body if not _asks(node)]
    return [Statement(node, number, *_names(node)) for node in nodes]


def _asks(node: ast.stmt) -> bool:
    """Whether it calls a grader."""
    calls = (each for each in ast.walk(node) if isinstance(node, ast.Expr))
    return any(isinstance(each, ast.Name) and each.id == "grade" for each in calls)


def _names(node: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that a statement gives a value to, or part of one, and those that it uses."""
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    symbols = table.get_symbols()
    gives = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    uses = {each.get_name() for each in symbols if each.is_referenced()} | _globals(table)
    for part in ast.walk(node):  # table["a"] = 1
        if isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store):
            gives |= {each.id for each in ast.walk(part.value) if isinstance(each, ast.Name)}
    return gives, uses


def _globals(table: symtable.SymbolTable) -> set[str]:
    """The names that functions and classes inside use of their surroundings."""
    found = set[str]()
    for inner in table.get_children():
        found |= {each.get_name() for each in inner.get_symbols() if each.is_global()}
        found |= _globals(inner)
    return found


def _needed(body: list[Statement], around: list[Statement]) -> Iterator[Statement]:
    """Statements before the exercise that give a value to what it uses, or to what those use."""
    asked = {name for statement in body for name in statement.uses}
    kept = list[Statement]()
    while new := [each for each in around if each not in kept and _gives(each, asked)]:
        kept += new
        asked |= {name for statement in new for name in statement.uses}
    return (statement for statement in around if statement in kept)


def _gives(statement: Statement, asked: set[str]) -> bool:
    star = isinstance(statement.node, ast.ImportFrom) and statement.node.names[0].name == "*"
    return star or bool(statement.gives & asked)


def _run(statement: Statement, lab: str, names: dict[str, Any]) -> None:
    """A statement of the exercise itself.

    Raises:
        Wrong: it raised something.
    """
    try:
        exec(_compiled(statement, lab), names)
    except (NotImplementedError, Wrong):
        raise
    except Exception as error:
        place = _place(lab, statement.cell)
        frames = traceback.extract_tb(error.__traceback__)
        line = [each.lineno for each in frames if each.filename == place][-1]
        raise Wrong(f"{place}, line {line}: {told(error)}.") from None


def _place(lab: str, cell: int) -> str:
    return f"{lab}.ipynb, code cell {cell}"


def _compiled(statement: Statement, lab: str) -> Any:
    return compile(ast.Module([statement.node], []), _place(lab, statement.cell), "exec")


def _arguments(lab: str, tag: str, cell: Cell) -> list[ast.expr]:
    """The course's arguments, but for names that the learner's own call has others for."""
    right = grading(lab, tag)
    for node in reversed(ast.parse(python(cell)).body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            own = node.value
            if ast.unparse(own.func) == ast.unparse(right.func):
                pairs = zip(own.args, right.args, strict=False)
                found = [a if {type(a), type(b)} == {ast.Name} else b for a, b in pairs]
                return [*found, *right.args[len(found) :]]
    return right.args


def _value(argument: ast.expr, names: dict[str, Any]) -> Any:
    """An argument as data, or pickled."""
    try:
        value = eval(compile(ast.Expression(argument), "the call of the grader", "eval"), names)
        if isinstance(value, np.generic):
            value = value.item()
        return value if _is_data(value) else pickling.dumps(value)
    except NameError as error:
        raise NotImplementedError(f"There is no {error.name} yet.") from error
    except Exception as error:
        raise Wrong(f"your function cannot be sent to another process: {error}.") from error


def _is_data(value: Any) -> bool:
    """Whether it is made of plain numbers, strings, lists, dicts and the library's records."""
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(_is_data, value.values()))
    record = isinstance(value, tuple) and type(value).__module__.startswith("minidist.")
    if type(value) in (list, tuple) or record:
        return all(map(_is_data, value))
    return type(value) in (str, int, float, bool, type(None))


class Pickled:
    """A learner's function on its way to the ranks that call it: only there it is unpickled."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return pickling.loads, (self.data,)

    def __call__(self, *_: object) -> None:
        raise RuntimeError("a learner's function was called by its grader's own process")
