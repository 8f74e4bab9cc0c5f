"""What a teacher reads and hands back: a sheet per learner, a table of all, a summary per task."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from course.ask.verdict import many
from course.submissions.similar import Group

SIGN = {"right": "✓", "wrong": "✗", "not yet": "·"}
DAY = 24 * 3600
LONGEST = 100  # characters of a sheet's name

Entry = dict[str, Any]  # digest, seed, tasks, notes, changed; begun while it is being graded
Weights = Mapping[str, float]  # task → points


def write(path: Path, text: str) -> None:
    """Aside, and renamed: whoever reads it meanwhile finds all of the old one.

    A learner's error may have characters that no file can hold: their codes are written.
    """
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text, encoding="utf-8", errors="backslashreplace")
    aside.replace(path)


def points(entry: Entry, weights: Weights) -> float:
    """Those of the tasks that are right, and a part of those that are earned in parts."""
    earned = 0.0
    for task, weight in weights.items():
        result = entry["tasks"].get(task, {})
        earned += weight * result.get("earned", result.get("status") == "right")
    return earned


def of_all(entry: Entry, weights: Weights) -> str:
    """Such as "7 of 10 points"."""
    return f"{round(points(entry, weights), 2):g} of {sum(weights.values()):g} points"


def days_late(entry: Entry, due: datetime | None) -> int:
    """Days begun between the deadline and the newest file; 0 if there is no deadline."""
    return max(0, math.ceil((entry["changed"] - due.timestamp()) / DAY)) if due else 0


def sheet(learner: str, entry: Entry, weights: Weights, due: datetime | None) -> str:
    """A learner's result: points, a line for each task, and what did not count."""
    lines = [f"# {learner}: {of_all(entry, weights)}", ""]
    if late := days_late(entry, due):
        newest = datetime.fromtimestamp(entry["changed"])
        lines += [
            f"Late by {many(late, 'day')}: the newest file is of {newest:%Y-%m-%d %H:%M}.",
            "",
        ]
    for task, weight in weights.items():
        result = entry["tasks"].get(task, {"status": "not yet", "text": "Not graded yet."})
        worth = f" ({weight:g} points)" if weight != 1 else ""
        lines.append(f"- {SIGN[result['status']]} **{task}**{worth}: {result['text']}")
    if entry["notes"]:
        lines += ["", "What was handed in:", "", *(f"- {note}" for note in entry["notes"])]
    lines += ["", f"With `COURSE_SEED={entry['seed']}` set, the graders draw the same cases again."]
    return "\n".join(lines) + "\n"


def sheet_name(learner: str) -> str:
    """A file name for a learner's sheet."""
    if len(learner.encode()) <= LONGEST:
        return f"{learner}.md"
    return f"{learner[: LONGEST // 4]}-{hashlib.sha256(learner.encode()).hexdigest()[:8]}.md"


def as_csv(entries: Mapping[str, Entry], weights: Weights, due: datetime | None) -> str:
    """A line for each learner: points, days late, and the points of each task."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["learner", "points", "of", "newest file", "days late", *weights])
    for learner, entry in entries.items():
        newest = datetime.fromtimestamp(entry["changed"]).isoformat(" ", "minutes")
        each = (f"{round(points(entry, {task: weight}), 2):g}" for task, weight in weights.items())
        total = f"{round(points(entry, weights), 2):g}", f"{sum(weights.values()):g}"
        cell = f"'{learner}" if learner[:1] in "=+-@" else learner  # no formula of a spreadsheet
        table.writerow([cell, *total, newest, days_late(entry, due), *each])
    return text.getvalue()


def summary(entries: Mapping[str, Entry], weights: Weights, alike: list[Group]) -> str:
    """How often each task is right, wrong or not yet, its commonest mistake, and what is alike."""
    lines = [f"# {len(entries)} submissions", ""]
    lines += ["| task | right | wrong | not yet | said most often |", "|---|---|---|---|---|"]
    for task in weights:
        found = [entry["tasks"][task] for entry in entries.values() if task in entry["tasks"]]
        count = Counter(result["status"] for result in found)
        counts = " | ".join(str(count[status]) for status in SIGN)
        lines.append(f"| {task} | {counts} | {_commonest(found)} |")
    lines += ["", "## Alike", ""]
    if not alike:
        lines.append("No two are more alike than short solutions of one task must be.")
    else:
        lines += [
            "A hint to look, and no verdict: who follows the chapter closely writes what it has.",
            "",
            *(f"- {group}" for group in alike),
        ]
    return "\n".join(lines) + "\n"


def _commonest(results: list[dict[str, Any]]) -> str:
    """The commonest message of wrong answers, whatever its numbers are, and how often it came."""
    texts = [result["text"] for result in results if result["status"] == "wrong"]
    kinds = Counter(re.sub(r"[\d.,]+", "#", text) for text in texts)
    if not kinds:
        return ""
    kind, times = kinds.most_common(1)[0]
    text = next(text for text in texts if re.sub(r"[\d.,]+", "#", text) == kind)
    return f"{times}×: " + " ".join(text.split())[:200].replace("|", "\\|")
