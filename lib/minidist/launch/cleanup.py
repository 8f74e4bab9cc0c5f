"""What lets a launch leave nothing behind: Ctrl-C that waits its turn, and a temporary folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PREFIX = "minidist-"

Call = tuple[int, FrameType | None]  # what a signal's handler is called with


class Interrupts:
    """Inside `with`, Ctrl-C waits for the end of the block, except where it is `allowed`.

    There the first one gets through. Those that follow would break off the ending of the ranks;
    when the block is being left by KeyboardInterrupt anyway, they have what they wanted.

    Only the main thread is ever interrupted. In another one, and where Ctrl-C is ignored, this
    does nothing.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._waiting: Call | None = None

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        self._ours = threading.current_thread() is threading.main_thread()
        if self._ours and callable(self._before):
            signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ours and callable(self._before):
            signal.signal(signal.SIGINT, self._before)
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self._deliver()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C through while this block runs, also one that has waited for it."""
        self._allowed = True
        try:
            self._deliver()
            yield
        finally:
            self._allowed = False

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self._waiting = number, frame
        if self._allowed:
            self._deliver()

    def _deliver(self) -> None:
        if (call := self._waiting) and callable(self._before):
            self._waiting = None
            try:
                self._before(*call)
            except BaseException:  # KeyboardInterrupt, as a rule; the next one waits
                self._allowed = False
                raise


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder, locked while its launcher lives; what dead launchers left is removed.

    A lock, since the number of a process says little where hosts or containers share the folder
    for temporary files.
    """
    _sweep()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        new, lock = Path(name, "new"), Path(name, "lock")
        with new.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            new.rename(lock)  # only now, or it could be taken for one that a dead launcher held
            yield lock.parent


def _sweep() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with suppress(OSError):  # as a rule BlockingIOError: its launcher lives
            if lock.lstat().st_uid == os.getuid():
                with lock.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
