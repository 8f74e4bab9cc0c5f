"""One run at a time in a folder of checkpoints: its rank 0 holds `run.lock` there.

The lock is the operating system's, which frees it when the process ends, however it ends: a killed
run keeps nobody out, and one that is only suspended still has its folder. Network file systems ask
their server. What is in the file only tells others who holds it.
"""

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from minidist.train.options import LOG, TrainError

PATIENCE = 5.0  # seconds that a killed run may take to be gone


class Lock:
    """Holds a folder until `release`, or until this process ends; TrainError if another one does.

    A second lock of the same process takes over the first, as a notebook's cell that is run again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / "run.lock"
        if earlier := _held.pop(self.path, None):
            earlier.release()
        deadline = time.monotonic() + PATIENCE
        while holder := self._take():
            if time.monotonic() > deadline:
                raise TrainError(
                    f"--checkpoint: {folder} is in use by {holder}; choose another folder, or end "
                    "that run"
                )
            time.sleep(0.1)
        _held[self.path] = self

    def release(self) -> None:
        if not self._file.closed:
            self.path.unlink(missing_ok=True)
            self._file.close()

    def _take(self) -> str:
        """Lock the file if nobody has; return who has, or else ""."""
        self._file = self.path.open("a+", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._file:
                self._file.seek(0)
                return self._file.read() or "another run"
        except OSError as error:
            LOG.warning(f"{self.path} cannot be locked ({error.strerror}): start no second run")
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
                since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
                self._file.truncate(0)
                self._file.write(f"process {os.getpid()} on {socket.gethostname()} (since {since})")
                self._file.flush()
                return ""
        self._file.close()
        return "a run that has just ended"  # and has deleted the file that we opened


_held: dict[Path, Lock] = {}  # this process's locks
