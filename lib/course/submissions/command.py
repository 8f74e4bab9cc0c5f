"""The command that grades a class, `python -m course.ask`: its options, and what it writes."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from course.submissions import files, sheets
from course.submissions.apart import Limits
from course.submissions.handed_in import Submission, counted
from course.submissions.run import Results, grade_all
from course.submissions.sheets import Entry
from course.submissions.similar import groups
from course.submissions.tasks import all_tasks

ABOUT = """\
Grade a class. In FOLDER each folder or zip is a submission, named by its learner: a copy of work/,
or a part of it, with the file that *Your progress* exports for the puzzles. In OUT you find

  grades.json   status and message of every task, kept after each submission
  grades.csv    a line for each learner
  summary.md    how often each task is right, the commonest mistakes, and what is alike
  sheets/       a page for each learner to hand back

Ctrl-C ends it, and the same command goes on: with what is not in grades.json yet, or has changed.
"""


def parsed(arguments: list[str] | None) -> tuple[ArgumentParser, Namespace]:
    """The options."""
    parser = ArgumentParser(
        usage="python -m course.ask FOLDER [OPTION ...]",
        description=ABOUT,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", type=Path, help="the submissions")
    add("--out", type=Path, default=Path("grades"), help="a folder for results [grades]")
    counts = parser.add_argument_group("what counts, for everybody alike")
    counts.add_argument(
        "--require",
        nargs="+",
        metavar="TASK",
        default=[],
        help='names of tasks or parts of them, with points if not 1: ring "project: DDP=3" [all]',
    )
    counts.add_argument(
        "--due",
        type=datetime.fromisoformat,
        metavar="TIME",
        help="such as 2027-01-31T23:59: days late, by the newest file, are told and cost nothing",
    )
    how = parser.add_argument_group("how it is run")
    add = how.add_argument
    add("--at-once", type=int, default=2, metavar="N", help="submissions at a time [2]")
    add("--seconds", type=float, default=Limits.seconds, metavar="S", help="limit of a task [180]")
    add("--gib", type=float, default=Limits.gib, metavar="GIB", help="memory of each process [16]")
    add(
        "--uid",
        type=int,
        metavar="N",
        help="if you are root: run submissions as users N, N + 1 ...",
    )
    add("--seed", help="of all that graders draw [a new one, or that of grades.json]")
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Grade, and write what there is, also when interrupted."""
    parser, asked = parsed(arguments)
    if sys.platform == "darwin":
        print("macOS does not limit memory: --gib has no effect.", file=sys.stderr)
    if not asked.folder.is_dir():
        parser.error(f"{asked.folder} is no folder")
    if asked.at_once < 1 or asked.seconds <= 0 or asked.gib <= 0:
        parser.error("--at-once, --seconds, --gib: expected numbers above 0")
    if asked.uid and os.geteuid() != 0:
        parser.error("--uid: only root can run submissions as other users")
    try:
        weights = weighted(asked.require)
        (asked.out / "sheets").mkdir(parents=True, exist_ok=True)
        results = Results(asked.out / "grades.json")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    submissions = collected(asked.folder)
    seed = asked.seed or next((e["seed"] for e in results.entries.values()), None)
    os.environ["COURSE_SEED"] = seed = seed or str(secrets.randbelow(10**6))
    limits = Limits(asked.seconds, asked.gib, asked.uid)
    bar = tqdm(total=len(submissions), desc="submissions")

    def say(learner: str, entry: Entry) -> None:
        bar.update(bar.n < bar.total)  # again, if some of it did not end in time
        tqdm.write(f"{learner}: {sheets.of_all(entry, weights)}")

    try:
        failed = grade_all(submissions, [*weights], results, asked.at_once, limits, seed, say)
    finally:
        bar.close()
        write_each(asked.out, submissions, results.entries, weights, asked.due)
    alike = groups(submissions)
    sheets.write(asked.out / "summary.md", sheets.summary(results.entries, weights, alike))
    print(*failed, sep="\n", end="\n" * bool(failed))
    print(f"{len(submissions) - len(failed)} submissions are graded: {asked.out}")
    sys.exit(bool(failed))


def weighted(required: list[str]) -> dict[str, float]:
    """Each task that counts, and its points.

    Raises:
        ValueError: a name is of no task, or its points are no number.
    """
    known, weights = all_tasks(), dict[str, float]()
    for each in required or [""]:
        name, _, worth = each.partition("=")
        found = [name] if name in known else [task for task in known if name in task]
        if not found:
            raise ValueError(f"--require: no task is named {name!r}; there are {', '.join(known)}")
        weights |= dict.fromkeys(found, float(worth or 1))
    return {task: weights[task] for task in known if task in weights}


def collected(folder: Path) -> dict[str, Submission]:
    """All submissions, read before anything of any of them runs."""
    learners, ignored = files.learners(folder)
    for name in ignored:
        print(f"{name} is ignored: neither a folder nor a zip.", file=sys.stderr)
    return {learner: submission(paths) for learner, paths in learners.items()}


def submission(paths: list[Path]) -> Submission:
    """What counts of what a learner has handed in; nothing if it cannot be made out."""
    try:
        return counted(files.read(paths))
    except Exception as error:  # whatever somebody thinks of next, it costs no other learner
        return Submission(notes=[f"It cannot be read: {type(error).__name__}: {error}."])


def write_each(
    out: Path,
    submissions: Mapping[str, Submission],
    entries: Mapping[str, Entry],
    weights: Mapping[str, float],
    due: datetime | None,
) -> None:
    """A sheet for each learner, and the table of all."""
    for learner, entry in entries.items():
        seen = submissions[learner].notes if learner in submissions else []
        whole = entry | {"notes": [*seen, *entry["notes"]]}
        page = sheets.sheet(learner, whole, weights, due)
        sheets.write(out / "sheets" / sheets.sheet_name(learner), page)
    sheets.write(out / "grades.csv", sheets.as_csv(entries, weights, due))
