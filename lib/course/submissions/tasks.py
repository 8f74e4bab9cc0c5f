"""The graded tasks: milestones of the project, exercises of the labs, and the puzzles' stars."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from course.ask.verdict import Grader, Verdict, alone, on_ranks, patient
from course.project.report import TARGETS, grade, names_of
from course.puzzles.again import SECONDS, judge_again
from course.puzzles.catalog import PUZZLES, stars_of
from course.submissions.context import Pickled, values
from course.submissions.handed_in import Submission
from course.submissions.labs import TAG, grading, imports, labs, stubs

STARS = "puzzles"


@dataclass(frozen=True)
class Share(Verdict):
    """A verdict on a task whose points are earned in parts."""

    earned: float = 0.0  # from 0 to 1


def all_tasks() -> list[str]:
    """The names of all tasks, such as "project: ring", "pipelines: bubble" and "puzzles"."""
    project = [f"project: {name}" for name in names_of("")]
    in_labs = [f"{lab}: {tag.removeprefix(TAG)}" for lab in labs() for tag in stubs(lab)]
    return [*project, *in_labs, STARS]


def missing(task: str, submission: Submission) -> str:
    """What was not handed in that the task needs, as a sentence; "" if all was."""
    room, _, name = task.partition(": ")
    if task == STARS:
        return "" if submission.puzzles else "There is no file that *Your progress* has exported."
    if room == "project":
        module = f"mine.{TARGETS[name][0]}"
    elif not (module := _module(room, TAG + name)):
        return "" if room in submission.labs else f"There is no copy of the lab {room}.ipynb."
    file = f"{module.removeprefix('mine.')}.py"
    return "" if file in submission.mine else f"There is no mine/{file}."


def verdict(task: str, submission: Submission) -> Verdict:
    """Grade a task."""
    room, _, name = task.partition(": ")
    if task == STARS:
        return _stars(submission.puzzles)
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
    given = [str(each.value) for each in grading(lab, tag).args if isinstance(each, ast.Constant)]
    return next((each for each in given if each.startswith("mine.")), "")


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


def _stars(answers: dict[str, str]) -> Verdict:
    """The stars of a learner's answers, each judged again in a process of its own."""

    @Grader
    def judged(_: object) -> str:
        patience = len(answers) * (SECONDS + 1)
        (found,) = on_ranks(_judge_each, 1, answers, timeout=patience)
        stars.update(found)
        return ""

    stars: dict[str, tuple[int, str]] = {}
    if not (ran := judged(None)):
        return ran
    earned, most = sum(each for each, _ in stars.values()), sum(map(stars_of, PUZZLES.values()))
    each = ", ".join(f"{name} {count}" for name, (count, _) in stars.items() if count)
    none = "".join(f" None for {name}: {why}" for name, (count, why) in stars.items() if not count)
    text = f"{earned} of {most} stars{': ' * bool(each)}{each}.{none}"
    return Share("right" if earned == most else "not yet", text, earned / most)


def _judge_each(answers: dict[str, str]) -> dict[str, tuple[int, str]]:
    return {name: judge_again(code, PUZZLES[name], patient(1)) for name, code in answers.items()}
