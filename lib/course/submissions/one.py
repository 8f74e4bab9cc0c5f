"""`python -m course.submissions.one FOLDER FD GIB [NAME ...]`: grade tasks of a submission.

To the file descriptor it writes a line of JSON when a task begins and one when it has its verdict,
so that whoever reads it knows which task broke this process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from course.submissions.tasks import tasks_of
from minidist.launch.process import adopt_orphans

FILE = 2**28  # bytes of the largest file that may be written
PROCESSES = 2048  # this user's limit; root has none


def main(folder: Path, said: int, memory: int, names: list[str]) -> None:
    """Grade them one after another, with at most so many bytes of address space."""
    os.set_inheritable(said, False)
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    with os.fdopen(said, "w", buffering=1) as out:
        for name, grade in tasks_of(folder).items():
            if name in names:
                print(json.dumps({"task": name}), file=out)
                start = time.monotonic()
                verdict = grade()
                took = round(time.monotonic() - start, 1)
                result = {"status": verdict.status, "text": str(verdict), "seconds": took}
                print(json.dumps({"task": name, **result}), file=out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(float(sys.argv[3]) * 2**30), sys.argv[4:])
