"""`python -m course.ask FOLDER`: grade every submission in a folder. `--help` says more."""

import os
import signal
import sys
from types import FrameType


def stop(*_: int | FrameType | None) -> None:
    """End at the first Ctrl-C, and let nothing disturb that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    if sys.platform == "win32":
        sys.exit("Windows cannot limit and end what it starts. Grade in WSL, or in the container.")
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        from course.submissions.command import main  # after that: it loads torch

        main()
    except KeyboardInterrupt:
        print("Interrupted. What is graded is kept; the same command goes on.", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # torch takes its time to leave
