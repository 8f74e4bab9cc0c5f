"""A class graded, several submissions at a time: kept after each, and gone on with where it ended.

One thread waits for all processes at once, so Ctrl-C ends it at any moment. What did not end in
time is tried once more when all else is graded, alone and with more patience: a busy machine is
nobody's mistake.
"""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from course.ask.verdict import LATE
from course.submissions.apart import Apart, Limits
from course.submissions.handed_in import Submission
from course.submissions.sheets import Entry, write
from course.submissions.tasks import missing

TRIES = 2
PATIENCE = 4.0  # times as long for what did not end in time
ENDED_ALL = (
    f"Wrong. It has ended the whole run {TRIES} times, as far as can be seen. To try once more, "
    "remove this learner from the results, and use the container."
)


class Results:
    """The results of all, in a file that is written anew after each submission."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.entries: dict[str, Entry] = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ValueError(f"{file} has no results: {error}") from error

    def of(self, learner: str, submission: Submission, seed: str) -> Entry:
        """What is known of a learner's submission as it is now."""
        old = self.entries.get(learner, {})
        if old.get("digest") != submission.digest:
            old = {"digest": submission.digest, "seed": seed, "tasks": {}, "notes": []}
        self.entries[learner] = old | {"changed": submission.changed}
        return self.entries[learner]

    def save(self) -> None:
        """Write the file, aside first."""
        entries = dict(sorted(self.entries.items()))
        write(self.file, json.dumps(entries, indent=1, ensure_ascii=False))


def grade_all(
    submissions: Mapping[str, Submission],
    tasks: Iterable[str],
    results: Results,
    at_once: int,
    limits: Limits,
    seed: str,
    say: Callable[[str, Entry], object],
) -> list[str]:
    """Grade what has no result yet; the learners whose grading failed, and why.

    After each submission the results are saved, and `say` is called with it.
    """
    waiting = dict[str, list[str]]()
    for learner, submission in submissions.items():
        entry = results.of(learner, submission, seed)
        for task in tasks:
            if why := missing(task, submission):
                text = f"Not yet. {why}"
                entry["tasks"][task] = {"status": "not yet", "text": text, "seconds": 0}
        left = [task for task in tasks if task not in entry["tasks"]]
        if entry.get("begun", 0) >= TRIES:
            ended = {"status": "wrong", "text": ENDED_ALL, "seconds": 0}
            entry["tasks"] |= dict.fromkeys(left, ended)
        elif left:
            waiting[learner] = left
    failed = _grade(submissions, waiting, results, at_once, limits, say)
    late = {learner: found for learner in submissions if (found := _late(results.entries[learner]))}
    return failed + _grade(submissions, late, results, 1, replace(limits, patience=PATIENCE), say)


def _late(entry: Entry) -> list[str]:
    """The tasks that did not end in time, unless they were tried again, or end the whole run."""
    tried = entry.get("begun", 0) >= TRIES
    return [
        task
        for task, result in entry["tasks"].items()
        if LATE.search(result["text"]) and not (tried or "again" in result)
    ]


def _grade(
    submissions: Mapping[str, Submission],
    waiting: Mapping[str, list[str]],
    results: Results,
    at_once: int,
    limits: Limits,
    say: Callable[[str, Entry], object],
) -> list[str]:
    """Grade each learner's tasks; as `grade_all`."""
    order, running = [*waiting], dict[str, Apart]()
    failed = list[str]()
    try:
        while order or running:
            while order and len(running) < at_once:
                learner = order.pop(0)
                results.entries[learner]["begun"] = results.entries[learner].get("begun", 0) + 1
                results.save()
                number = [*submissions].index(learner)
                own = limits.uid and limits.uid + number  # nobody can end another's processes
                how = replace(limits, uid=own)
                running[learner] = Apart(submissions[learner], waiting[learner], how)
            for learner in _heard(running):
                apart = running.pop(learner)
                _keep(results.entries[learner], apart)
                results.save()
                failed += [f"{learner}: {apart.failed}"] if apart.failed else []
                say(learner, results.entries[learner])
    finally:  # also on Ctrl-C
        for learner, apart in running.items():
            _keep(results.entries[learner], apart)
        try:
            results.save()
        finally:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda apart: apart.close(), running.values()))
    return failed


def _heard(running: Mapping[str, Apart]) -> list[str]:
    """Wait until one says something or is late; those that are done."""
    patience = max(0.0, min(apart.patience for apart in running.values()))
    ready, _, _ = select.select([*running.values()], [], [], patience)
    for apart in running.values():
        if apart in ready or apart.patience <= 0:
            apart.hear()
    return [learner for learner, apart in running.items() if apart.done]


def _keep(entry: Entry, apart: Apart) -> None:
    entry.pop("begun", None)
    again = {"again": True} if apart.limits.patience > 1 else {}
    entry["tasks"] |= {task: result | again for task, result in apart.results.items()}
    entry["notes"] = [*dict.fromkeys([*entry["notes"], *apart.notes])]
