"""`python -P -m course.submissions.one FOLDER FD`: grade tasks of a submission, read from stdin.

To the file descriptor it writes a line of JSON when a task begins and one when it has its verdict,
so that whoever reads it knows which task broke this process. It runs nothing of the submission
itself: that happens on ranks, which have neither this descriptor nor, unless they are root's, a way
to look into this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shutil
import signal
import sys
import time
from pathlib import Path
from unittest.mock import patch

import minidist
from course.ask.verdict import Verdict
from course.submissions.guard import guarded_launch
from course.submissions.handed_in import Submission
from course.submissions.tasks import Share, verdict
from minidist.launch.process import adopt_orphans

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # from linux/prctl.h
FILE = 2**28  # bytes of the largest file that may be written
PROCESSES = 2048  # this user's limit; root has none
TOUCHED = "Its code changed or deleted its own files while {} was graded; they were put back."

LEAVE = "Leave files, pipes and processes alone that are not its own."


def main(folder: Path, said: int) -> None:
    """Grade what stdin asks for, one after another."""
    submission, names, memory = pickle.load(sys.stdin.buffer)
    os.set_inheritable(said, False)
    adopt_orphans()
    hide()
    limit(memory)
    put(folder, submission)
    sys.path.insert(0, str(folder / "path"))  # where nothing but `mine` is
    sys.path.append(str(folder / "work"))  # the last, so `random.py` there is nobody else's
    with os.fdopen(said, "w", buffering=1) as out, patch.object(minidist, "launch", guarded_launch):
        for name in names:
            print(json.dumps({"task": name}), file=out)
            quiet()
            start = time.monotonic()
            found, broke = asked(name, submission)
            took = round(time.monotonic() - start, 1)
            note = "" if put(folder, submission) else TOUCHED.format(name)
            result = {"status": found.status, "text": str(found), "seconds": took, "note": note}
            result |= {"earned": found.earned} if isinstance(found, Share) else {}
            print(json.dumps({"task": name, **result}), file=out)
            if broke:  # the fork server or its folder may be gone: the rest in a new process
                return


def asked(name: str, submission: Submission) -> tuple[Verdict, bool]:
    """The verdict on a task, and whether its grader broke."""
    try:
        return verdict(name, submission), False
    except Exception as error:
        said = f"it has broken what grades it ({type(error).__name__}: {error}). {LEAVE}"
        return Verdict("wrong", said), True


def put(folder: Path, submission: Submission) -> bool:
    """Write its files, read-only, unless they are there; True if they were."""
    files = {Path("path/mine/__init__.py"): b"", Path("work/.here"): b""}  # a package at all events
    files |= {Path("path/mine", name): data for name, data in submission.mine.items()}
    files |= {Path("work", name): data for name, data in submission.helpers.items()}
    try:
        same = all((folder / name).read_bytes() == data for name, data in files.items())
        if same and os.listdir(folder / "path") == ["mine"]:
            return True
    except OSError:
        pass
    shutil.rmtree(folder / "path", ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o444)
    os.chdir(folder / "work")
    return False


def hide() -> None:
    """On Linux: end with the command that has started this, and let others' eyes not in."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_DUMPABLE, 0)


def limit(memory: int) -> None:
    """Bound memory, files and processes, where the system can; the command says where not."""
    import resource  # Windows has none

    for what, most in {"AS": memory, "FSIZE": FILE, "NPROC": PROCESSES}.items():
        with_limit = getattr(resource, f"RLIMIT_{what}")
        try:
            resource.setrlimit(with_limit, (most, most))
        except (ValueError, OSError):  # macOS knows no limit of memory
            continue


def quiet() -> None:
    """Nothing that is printed from now on is kept."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
