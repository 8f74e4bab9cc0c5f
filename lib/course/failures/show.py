"""How a lab shows a case of `course.failures`: the symptom first, what was wrong on demand."""

import inspect
from collections.abc import Callable
from difflib import unified_diff
from textwrap import dedent, wrap
from typing import Any

from course.failures.case import Case, Seen

COLUMNS = 86


def symptom(seen: Seen) -> None:
    """Print what the user of the run has before them, and nothing else."""
    _print(seen.symptom)


def record(seen: Seen) -> None:
    """Print what the ranks have recorded, their last calls and their stacks; no verdict."""
    _print(seen.report.partition("\n")[2].strip("\n"))


def repair(case: Case, kit: str = "torch") -> None:
    """Print the lines that the repair changes, and what the repaired run shows."""
    print(change(case))
    print()
    symptom(case.see(kit, repaired=True))


def change(case: Case) -> str:
    """The repair as a diff of the case's two functions."""
    assert case.repaired, case.name
    lines = unified_diff(_body(case.fails), _body(case.repaired), lineterm="", n=1)
    return "\n".join("  ..." if line.startswith("@@") else line for line in list(lines)[3:])


def _body(fn: Callable[..., Any]) -> list[str]:
    """The lines of a function below its docstring of one line."""
    return dedent("".join(inspect.getsourcelines(fn)[0][2:])).splitlines()


def _print(text: str) -> None:
    """With long lines of prose wrapped; those of a table or a stack stay."""
    for line in text.splitlines():
        plain = line.startswith((" ", "\t")) or "  " in line
        print("\n".join([line] if plain or not line else wrap(line, COLUMNS)))
