"""A failure as a lab shows it: the symptom first, what was wrong on demand."""

from course.chapters.disagree.failures.case import Case, Seen


def symptom(seen: Seen) -> None:
    """Print what the user of the run has before them, and nothing else."""
    print(seen.symptom)


def record(seen: Seen) -> None:
    """Print what the ranks have recorded, their last calls and their stacks; no verdict."""
    print(seen.report.partition("\n")[2].strip("\n"))


def repair(case: Case, kit: str = "torch") -> None:
    """Print the lines that the repair changes, and what the repaired run shows."""
    print(case.repair)
    symptom(case.see(kit, repaired=True))
