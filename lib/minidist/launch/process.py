"""A rank as its launcher sees it."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from signal import SIGKILL

from minidist.launch import rank as rank_process
from minidist.launch import server
from minidist.launch.failure import Died, Outcome
from minidist.launch.rank import STACK_SIGNAL, Task


class Member:
    """One rank, on its way as soon as this is made: to be heard, asked, ended and quoted."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.reports, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self.process = server.start(rank_process.main, task, theirs)
        except BaseException:
            self.reports.close()  # ends the rank too, if it is on its way already
            raise

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        assert self.process.pid is not None
        return self.process.pid

    def hear(self) -> Outcome:
        """What the rank reported; call it when its pipe or its process has something to say."""
        with suppress(EOFError, OSError):
            if self.reports.poll():
                word: Outcome = self.reports.recv()
                return word
        self.process.join()
        return Died(time.monotonic(), self.process.exitcode or 0)

    def ask_stack(self) -> None:
        """Let the rank write down where it stands, whatever it is doing."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)

    def stack(self) -> str:
        """Where it stood when asked, as far as it has told."""
        return self._written("stack")

    def kill(self) -> None:
        """End the rank and every process that it started; it has nothing left to say."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, SIGKILL)
        self.process.kill()  # in case it had no group of its own yet

    def close(self) -> None:
        """Wait until it is gone, and let go of it."""
        self.process.join()
        self.process.close()
        self.reports.close()

    def show_output(self) -> None:
        """Print what it has said, each line marked with its rank."""
        for line in self._written("out").splitlines():
            print(f"[rank {self.task.rank}] {line}")

    def _written(self, kind: str) -> str:
        path = self.task.folder / f"{self.task.rank}.{kind}"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""
