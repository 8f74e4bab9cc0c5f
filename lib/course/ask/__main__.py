"""`python -m course.ask FOLDER --json grades.json`: grade every submission in a folder.

Each folder in FOLDER is a submission, named by its learner. After each one the file is written
anew; run the command again after an interruption, and it goes on with those that are not in it or
have changed since. What graders draw is drawn with a seed that no learner knows before.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from argparse import ArgumentParser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from course.submissions.apart import Limits, grade_apart, points

SIGN = {"right": "✓", "wrong": "✗", "not yet": "·"}


def digest(folder: Path, only: str) -> str:
    """A hash of a submission's files and of the tasks to grade."""
    seen = hashlib.sha256(only.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            seen.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return seen.hexdigest()


def sheet(learner: str, entry: dict[str, Any]) -> str:
    """A learner's result: points, and a line for each task."""
    lines = [f"# {learner}: {points(entry['tasks'])}", ""]
    for task, result in entry["tasks"].items():
        lines.append(f"- {SIGN[result['status']]} **{task}**: {result['text']}")
    lines += ["", f"With `COURSE_SEED={entry['seed']}` set, the graders draw the same cases again."]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Aside, and renamed."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def grade_all(
    folder: Path, out: Path, only: str, at_once: int, limits: Limits, say: Callable[[str], object]
) -> dict[str, Any]:
    """Grade those that are not in `out` as they are now; write it after each; return all."""
    graded: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    digests = {path.name: digest(path, only) for path in sorted(folder.iterdir()) if path.is_dir()}
    graded = {name: e for name, e in graded.items() if e["digest"] == digests.get(name)}
    waiting = [name for name in digests if name not in graded]
    with ThreadPoolExecutor(at_once) as pool:
        jobs = {pool.submit(grade_apart, folder / name, only, limits): name for name in waiting}
        for job in tqdm(as_completed(jobs), total=len(jobs), desc="submissions"):
            name, tasks = jobs[job], job.result()
            graded[name] = {
                "points": points(tasks),
                "seed": os.environ.get("COURSE_SEED", ""),
                "digest": digests[name],
                "tasks": tasks,
            }
            write(out, json.dumps(dict(sorted(graded.items())), indent=1, ensure_ascii=False))
            say(f"{name}: {points(tasks)}")
    return graded


if __name__ == "__main__":
    parser = ArgumentParser("course.ask", description="Grade every submission in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, default=Path("grades.json"), help="also resumed")
    parser.add_argument("--sheets", type=Path, help="a folder for a Markdown sheet per learner")
    parser.add_argument("--only", default="", help='part of the tasks\' names: "ring", "project"')
    parser.add_argument("--at-once", type=int, default=2, help="submissions at a time")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="per task")
    parser.add_argument("--gib", type=float, default=Limits.gib, help="memory of each process")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all draws")
    asked = parser.parse_args()
    os.environ["COURSE_SEED"] = str(asked.seed)
    if not asked.folder.is_dir():
        parser.error(f"{asked.folder} is no folder")
    for path in filter(None, (asked.json, asked.sheets)):
        if not path.absolute().parent.is_dir():
            parser.error(f"{path}: its folder does not exist")
    if asked.at_once < 1 or asked.seconds <= 0 or asked.gib <= 0:
        parser.error("--at-once, --seconds, --gib: expected numbers above 0")
    limits = Limits(asked.seconds, asked.gib)
    done = grade_all(asked.folder, asked.json, asked.only, asked.at_once, limits, tqdm.write)
    if asked.sheets:
        asked.sheets.mkdir(exist_ok=True)
        for learner, entry in done.items():
            write(asked.sheets / f"{learner}.md", sheet(learner, entry))
    print(f"{len(done)} submissions are graded: {asked.json}")
