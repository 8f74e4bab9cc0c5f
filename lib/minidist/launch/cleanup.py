"""Cleanup, so that a launch leaves nothing behind: Ctrl-C waits its turn; a job's folder goes."""

import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

from minidist.launch.process import ForkedProcess, end_cold_server


class Interrupts:
    """Inside `with`, Ctrl-C waits for the end of the block, except where it is `allowed`.

    There the first one gets through. Those that follow would break off the ending of the ranks, and
    are dropped if the block is left by KeyboardInterrupt anyway. In a thread that is not the main
    one, which alone is ever interrupted, and where Ctrl-C is ignored, this does nothing.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._waiting: tuple[int, FrameType | None] | None = None
        self._hasten: Callable[[], object] = int  # called when one has to wait

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        self._ours = in_main and callable(self._before)
        if self._ours:
            signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ours:
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

    @contextmanager
    def held(self, hasten: Callable[[], object] = int) -> Iterator[None]:
        """Let Ctrl-C wait while this block runs, also where it is `allowed`; it calls `hasten`."""
        allowed, self._allowed, self._hasten = self._allowed, False, hasten
        try:
            yield
        finally:
            self._allowed, self._hasten = allowed, int
        if allowed:
            self._deliver()

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self._waiting = number, frame
        if self._allowed:
            self._deliver()
        else:
            self._hasten()

    def _deliver(self) -> None:
        if (call := self._waiting) and callable(self._before):
            self._waiting = None
            try:
                self._before(*call)
            except BaseException:  # KeyboardInterrupt, as a rule; the next one waits
                self._allowed = False
                raise


# A shell that lives as long as the launcher holds the other end of its input. It is given the
# job's processes and their groups; those that are left at the end, a killed launcher has left.
_GUARD = """
while read -r line; do left=$line; done
[ -z "$left" ] || kill -s KILL -- $left
rm -rf -- "$1"
"""


class Job:
    """Processes and a folder, which go at its end with all they started, or with the launcher."""

    def __init__(self, folder: Path, guard: IO[bytes], interrupts: Interrupts) -> None:
        self.folder, self._guard, self._interrupts = folder, guard, interrupts
        self.processes: list[ForkedProcess] = []

    def start(self, target: Callable[..., None], *args: Any) -> ForkedProcess:
        # Half started, it would wait for the rest of its call.
        with self._interrupts.held(end_cold_server):
            process = ForkedProcess(self.folder, target, *args)
            self.processes.append(process)
            self._tell_guard()
        return process

    def end(self, *processes: ForkedProcess) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
            self.processes.remove(process)
        self._tell_guard()

    def _tell_guard(self) -> None:
        pids = [process.pid for process in self.processes]
        with suppress(BrokenPipeError):  # somebody has killed it
            self._guard.write((" ".join(f"-{pid} {pid}" for pid in pids) + "\n").encode())


@contextmanager
def job(interrupts: Interrupts) -> Iterator[Job]:
    with (
        tempfile.TemporaryDirectory(prefix="minidist-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "minidist-guard", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # or what ends the launcher's group would end it too
        ) as guard,
    ):
        assert guard.stdin
        job = Job(Path(folder), guard.stdin, interrupts)
        try:
            yield job
        finally:
            job.end(*job.processes)
            guard.stdin.close()
            guard.wait()  # on KeyboardInterrupt, leaving the block waits a quarter of a second only
