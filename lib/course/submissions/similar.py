"""Solutions that are alike, between learners and with the lesson: a hint to look, and no verdict.

Of each file or cell the shape is compared, not its names: kinds of syntax in order, cut into runs
of a few, of which a part is kept as fingerprints (winnowing, Schleimer, Wilkerson and Aiken, 2003).
Functions that nobody has written yet do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from course.submissions.handed_in import Submission
from course.submissions.labs import TAG, Cell, labs, stubs

RUN, WINDOW = 10, 4  # nodes of syntax in a fingerprint; of so many in a row, the least is kept
ENOUGH = 40  # fingerprints: less is too short to say anything
ALIKE = 0.8  # share of the smaller one's
LONGEST = 2**17  # characters of a program that is looked at
GIVEN = ("__init__.py", "refusals.py")
LESSON = Path(__file__).parents[2] / "from_scratch"

Prints = frozenset[int]


class Group(NamedTuple):
    """Solutions of one task, each of which is like another one of them."""

    what: str
    learners: list[str]  # and "the lesson", if it is one of them
    share: float  # of the two that are most alike

    def __str__(self) -> str:
        return f"{self.what}: {', '.join(self.learners)} (up to {self.share:.0%})"


def groups(submissions: Mapping[str, Submission]) -> list[Group]:
    """All that are alike, the most alike first."""
    written: dict[str, dict[str, Prints]] = {}  # file or exercise → learner → fingerprints
    for learner, submission in submissions.items():
        for what, prints in _prints(submission):
            if len(prints) >= ENOUGH:
                written.setdefault(what, {})[learner] = prints
    found = list[Group]()
    for what, by in written.items():
        found += _grouped(what, {**by, "the lesson": _lesson(what)})
    return sorted(found, key=lambda group: (-group.share, group))


def _grouped(what: str, by: Mapping[str, Prints]) -> Iterator[Group]:
    """The groups of a task: who is like somebody is of his group."""
    group = {learner: {learner} for learner in by}
    most = dict.fromkeys(by, 0.0)
    for one, other in combinations(by, 2):
        if (share := _share(by[one], by[other])) >= ALIKE:
            group[one] |= group[other]
            group |= dict.fromkeys(group[one], group[one])
            most |= {each: max(most[each], share) for each in (one, other)}
    for learners in {id(each): each for each in group.values() if len(each) > 1}.values():
        yield Group(what, sorted(learners), max(most[each] for each in learners))


def _share(one: Prints, other: Prints) -> float:
    """The part of the shorter one that both have."""
    return len(one & other) / (min(len(one), len(other)) or 1)


def _prints(submission: Submission) -> Iterator[tuple[str, Prints]]:
    for name, data in submission.mine.items():
        if name.endswith(".py") and name not in GIVEN:
            yield name, fingerprints(data.decode(errors="replace"))
    for lab, cells in submission.labs.items():
        for cell in cells:
            for tag in cell.tags:
                if tag in stubs(lab):
                    yield f"{lab}: {tag.removeprefix(TAG)}", fingerprints(_program(cell))


@cache
def _lesson(what: str) -> Prints:
    """The fingerprints of the solution that the course prints."""
    if what.endswith(".py"):
        path = LESSON / what
        return fingerprints(path.read_text()) if path.exists() else frozenset()
    lab, _, name = what.partition(": ")
    solutions = [cell for cell in labs()[lab] if f"solution-{name}" in cell.tags]
    return fingerprints("\n".join(map(_program, solutions)))


def _program(cell: Cell) -> str:
    """A cell without lines that only IPython reads, for which it would take its time."""
    return re.sub(r"^[ \t]*[%!].*", "", cell.source[:LONGEST], flags=re.MULTILINE)


def fingerprints(source: str) -> Prints:
    """Those of a program; none of what is no Python."""
    try:
        kinds = [*_kinds(ast.parse(source[:LONGEST]))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    runs = [crc32(" ".join(kinds[at : at + RUN]).encode()) for at in range(len(kinds) - RUN + 1)]
    return frozenset(min(runs[at : at + WINDOW]) for at in range(len(runs) - WINDOW + 1))


def _kinds(node: ast.AST) -> Iterator[str]:
    """Kinds of nodes in order, without names, types, values and docstrings."""
    yield type(node).__name__
    for child in _children(node):
        yield from _kinds(child)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    for each in ast.iter_child_nodes(node):
        kind = type(each)
        if kind in (ast.Load, ast.Store, ast.Del, ast.Import, ast.ImportFrom):
            continue
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            continue
        if isinstance(each, ast.FunctionDef) and isinstance(each.body[-1], ast.Raise):
            continue  # a stub
        yield each
