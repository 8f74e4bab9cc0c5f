"""A failure as a lab shows it: the symptom first, what was wrong on demand."""

from textwrap import wrap

from course.chapters.disagree.failures.case import Case, Seen

COLUMNS = 86


def symptom(seen: Seen) -> None:
    """Print what the user of the run has before them, and nothing else."""
    _print(seen.symptom)


def record(seen: Seen) -> None:
    """Print what the ranks have recorded, their last calls and their stacks; no verdict."""
    _print(seen.report.partition("\n")[2].strip("\n"))


def repair(case: Case, kit: str = "torch") -> None:
    """Print the lines that the repair changes, and what the repaired run shows."""
    print(case.repair)
    symptom(case.see(kit, repaired=True))


def _print(text: str) -> None:
    """With long lines of prose wrapped; those of a table or a stack stay."""
    for line in text.splitlines():
        plain = line.startswith((" ", "\t")) or "  " in line
        print("\n".join([line] if plain or not line else wrap(line, COLUMNS)))
