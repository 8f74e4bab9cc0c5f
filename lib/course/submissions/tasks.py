"""The graded tasks: milestones of the project, and exercises of the labs."""

from __future__ import annotations

import ast
import re
from typing import Any

from course.ask.verdict import Grader, Verdict, alone
from course.project.report import TARGETS, grade, names_of
from course.submissions.context import Pickled, values
from course.submissions.handed_in import Submission
from course.submissions.labs import TAG, grading, imports, labs, stubs


def all_tasks() -> list[str]:
    """The names of all tasks, such as "project: ring" and "pipelines: bubble"."""
    project = [f"project: {name}" for name in names_of("")]
    return project + [f"{lab}: {tag.removeprefix(TAG)}" for lab in labs() for tag in stubs(lab)]


def missing(task: str, submission: Submission) -> str:
    """What was not handed in that the task needs, as a sentence; "" if all was."""
    room, _, name = task.partition(": ")
    if room == "project":
        module = f"mine.{TARGETS[name][0]}"
    elif not (module := _module(room, TAG + name)):
        return "" if room in submission.labs else f"There is no copy of the lab {room}.ipynb."
    file = f"{module.removeprefix('mine.')}.py"
    return "" if file in submission.mine else f"There is no mine/{file}."


def verdict(task: str, submission: Submission) -> Verdict:
    """Grade a task."""
    room, _, name = task.partition(": ")
    if room == "project":
        return grade(name)
    if module := _module(room, TAG + name):
        found: Verdict = _grader(room, TAG + name)(module)
        return found
    return _exercise(room, TAG + name, submission)


def _module(lab: str, tag: str) -> str:
    """The module of `mine` that a grader is asked about, "" if it is asked about names of a cell.

    That is the capstone's: nothing in its cell counts, which may have the whole job in it.
    """
    given = [each.value for each in grading(lab, tag).args if isinstance(each, ast.Constant)]
    return next((each for each in given if str(each).startswith("mine.")), "")


def _exercise(lab: str, tag: str, submission: Submission) -> Verdict:
    """Run a learner's cell on a rank, and ask the course's grader about what it defines."""

    @Grader
    def cell(_: object) -> str:
        found.append(alone(values, lab, tag, submission.labs[lab]))
        return ""

    found: list[tuple[list[Any], dict[str, str]]] = []
    if not (ran := cell(None)):
        return ran
    ((arguments, failed),) = found
    given = [Pickled(each) if isinstance(each, bytes) else each for each in arguments]
    asked: Verdict = _grader(lab, tag)(*given)
    missed = re.search(r"name '(\w+)' is not defined", asked.text)
    if not asked and missed and missed[1] in failed:
        return Verdict(asked.status, f"{asked.text} {failed[missed[1]]}")
    return asked


def _grader(lab: str, tag: str) -> Any:
    """The grader as the course has it."""
    names: dict[str, Any] = {}
    for node in imports(lab):
        if any((alias.asname or alias.name) == "grade" for alias in node.names):
            exec(compile(ast.Module([node], []), lab, "exec"), names)
    return eval(ast.unparse(grading(lab, tag).func), names)
