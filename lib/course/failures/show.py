"""How a lab shows a case of `course.failures`: the symptom first, what was wrong on demand."""

from __future__ import annotations

import inspect
from textwrap import wrap

from course.failures.case import Case, Seen

COLUMNS = 86


def symptom(seen: Seen) -> None:
    """Print what the user of the run has before them, and nothing else."""
    if seen.stuck:
        print("(nothing: no error, no value, all ranks still run)")
    elif seen.error:
        _print(seen.error)
    else:
        for rank, value in enumerate(seen.values or []):
            _print(f"rank {rank}: {value}")


def record(seen: Seen) -> None:
    """Print what the ranks have recorded: a sentence, their last calls, their stacks."""
    _print(seen.report)


def repaired(case: Case, kit: str = "torch") -> None:
    """Print the lines that are repaired and what the ranks return with them."""
    assert case.repaired, case.name
    print(inspect.getsource(case.repaired))
    symptom(case.see(kit, repaired=True))


def _print(text: str) -> None:
    """With long lines of prose wrapped; those of a table or a stack stay."""
    for line in text.splitlines():
        plain = line.startswith((" ", "\t")) or "  " in line
        print("\n".join([line] if plain or not line else wrap(line, COLUMNS)))
