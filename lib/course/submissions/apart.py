"""A submission graded in a process of its own: whatever it does there costs its own points.

It works on a copy, in a session of its own, with limits of time and memory; what breaks the process
costs the task that was being graded, and the rest goes on in a new one. It is not a sandbox: code
of a submission may read and delete what you may, and use the network. Grade strangers in a
container.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Any

from course.ask.verdict import many
from course.submissions.tasks import tasks_of
from minidist.launch.process import kill_tree

Result = dict[str, Any]  # status, text, seconds
START = 120.0  # seconds more until the first task begins: torch has to be loaded


@dataclass(frozen=True)
class Limits:
    """`seconds` for a task; `gib` of address space for each process."""

    seconds: float = 180.0
    gib: float = 16.0


def grade_apart(folder: Path, only: str, limits: Limits) -> dict[str, Result]:
    """The results of a submission's tasks whose names contain `only`."""
    with TemporaryDirectory(prefix="submission-", ignore_cleanup_errors=True) as name:
        copy = Path(name).resolve() / "work"
        whole = (folder / "mine").is_dir() or any(folder.rglob("*.ipynb"))  # work/, not just mine/
        target = copy if whole else copy / "mine"
        shutil.copytree(folder, target, symlinks=True)
        results: dict[str, Result] = {task: {} for task in tasks_of(copy) if only in task}
        while left := [task for task, result in results.items() if not result]:
            begun, why = _run(copy, left, results, limits)
            if begun is None:  # not even the first: it cannot be because of the submission
                raise RuntimeError(f"{folder}: the process that grades it {why}")
            if not results[begun]:
                text = f"Wrong. It has broken the process that graded it, which {why}."
                results[begun] = {"status": "wrong", "text": text, "seconds": limits.seconds}
        return results


def _run(
    copy: Path, names: list[str], results: dict[str, Result], limits: Limits
) -> tuple[str | None, str]:
    """Grade these tasks, until a process ends; the last that it began, and how it ended."""
    read, write = os.pipe()
    to = copy, str(write), str(limits.gib)
    process = subprocess.Popen(
        [sys.executable, "-m", "course.submissions.one", *to, *names],
        pass_fds=[write],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"HOME": str(copy), "TMPDIR": str(copy.parent), "TQDM_DISABLE": "1"},
    )
    os.close(write)
    begun, rest = None, b""
    with os.fdopen(read, "rb", buffering=0) as said:
        while in_time := select([said], [], [], limits.seconds + (0 if begun else START))[0]:
            if not (new := said.read(2**16)):
                break
            *lines, rest = (rest + new).split(b"\n")
            for result in map(json.loads, lines):
                begun = result.pop("task")
                results[begun] = result
    kill_tree(process.pid)
    code = process.wait()
    if not in_time:
        return begun, f"did not end within {limits.seconds:g} s"
    if code < 0:
        return begun, f"was killed by {signal.Signals(-code).name}"
    return begun, f"left with exit code {code}"


def points(results: dict[str, Result]) -> str:
    """Such as "7 of 10 tasks"."""
    right = sum(result["status"] == "right" for result in results.values())
    return f"{right} of {many(len(results), 'task')}"
