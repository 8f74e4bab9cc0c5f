"""A submission graded in processes of its own: whatever it does there costs its own points.

They work on a copy, in a session of their own, with limits of time and memory. What breaks the
process costs the task that was being graded, and the rest goes on in a new one. It is not a
sandbox: code of a submission may read and delete what you may, and use the network. Grade strangers
in a container.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course.ask.verdict import PATIENCE
from course.submissions.handed_in import Submission
from minidist.launch.process import kill_tree

Result = dict[str, Any]  # status, text, seconds; earned where that is a part
START = 120.0  # seconds more until the first task begins: torch has to be loaded
LIB = Path(__file__).parents[2]


@dataclass(frozen=True)
class Limits:
    """`seconds` for a task; `gib` of address space for each process; a user who owns nothing.

    With `patience`, that many times as long for a task, and for all that its grader waits for.
    """

    seconds: float = 180.0
    gib: float = 16.0
    uid: int | None = None  # None: yours
    patience: float = 1.0

    @property
    def of_task(self) -> float:
        return self.seconds * self.patience


class Apart:
    """The grading of a submission, as its starter sees it: what it has said, and when it is late.

    `results` fills as it goes, until it is `done`. `failed` says why there is no grading, which is
    not the submission's fault: not even its first task has begun.
    """

    def __init__(self, submission: Submission, tasks: Iterable[str], limits: Limits) -> None:
        self.submission, self.limits = submission, limits
        self.left, self.results = [*tasks], dict[str, Result]()
        self.notes, self.failed, self.done = list[str](), "", False
        self._start()

    def _start(self) -> None:
        self._folder = TemporaryDirectory(prefix="submission-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name).resolve()
        (folder / "work").mkdir()
        asked = self.submission, self.left, int(self.limits.gib * 2**30)
        (folder / "asked").write_bytes(pickle.dumps(asked))
        lib = os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": lib, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        own |= {"HOME": str(folder / "work"), "TMPDIR": str(folder), "TQDM_DISABLE": "1"}
        own |= {PATIENCE: f"{self.limits.patience}"}
        own |= {"USER": "learner"}  # a uid need not have a name
        uid = self.limits.uid
        for path in (folder, folder / "work"):
            os.chown(path, -1 if uid is None else uid, -1)
        self._said, write = os.pipe()
        self._rest, self._begun, self._deadline = b"", "", self._until(START)
        with (folder / "asked").open("rb") as stdin, (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "course.submissions.one", str(folder), str(write)],
                pass_fds=[write],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                cwd=folder / "work",
                env=os.environ | own,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )
        os.close(write)

    def _until(self, more: float = 0.0) -> float:
        return time.monotonic() + self.limits.of_task + more

    def fileno(self) -> int:
        """The end of the pipe on which it is heard, for `select`."""
        return self._said

    @property
    def patience(self) -> float:
        """Seconds until it is late."""
        return self._deadline - time.monotonic()

    def hear(self) -> None:
        """Take in what it has said, or that it has ended or is late."""
        if self.patience <= 0:
            self._ended(f"did not end within {self.limits.of_task:g} s")
        elif new := os.read(self._said, 2**16):
            *lines, self._rest = (self._rest + new).split(b"\n")
            for result in map(json.loads, lines):
                self._take(result)
            if not self.left:
                self._ended("")
        else:
            self._ended("")

    def _take(self, result: Result) -> None:
        self._begun, self._deadline = result.pop("task"), self._until()
        if result:
            if note := result.pop("note"):
                self.notes.append(note)
            self.results[self._begun] = result
            self.left.remove(self._begun)

    def _ended(self, how: str) -> None:
        """Count against the submission what its process had begun, and go on in another one."""
        code = self._kill()
        how = how or (f"was killed by {signal.Signals(-code).name}" if code < 0 else "has ended")
        if not self._begun:
            errors = Path(self._folder.name, "errors")
            last = errors.read_text(errors="replace").splitlines()[-1:] if errors.exists() else []
            self.failed = f"The process that grades it {how}. {''.join(last)}".strip()
        elif self._begun in self.left:
            text = f"Wrong. It has broken the process that graded it, which {how}."
            result = {"status": "wrong", "text": text, "seconds": 0, "note": ""}
            self._take({"task": self._begun, **result})
        self._folder.cleanup()
        self.done = not self.left or bool(self.failed)
        if not self.done:
            self._start()

    def _kill(self) -> int:
        kill_tree(self._process.pid)
        os.close(self._said)
        return self._process.wait()

    def close(self) -> None:
        """End it, and remove what it worked on."""
        if not self.done:
            self._kill()
            self._folder.cleanup()
