"""Processes forked from a server that has torch loaded: how they are started, heard and killed."""

import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from minidist.launch.outcome import Died, Outcome
from minidist.launch.pickling import main_lock, stand_in_for_main

PRELOAD = ["minidist.launch.preload"]  # what the server imports

BEGUN, REPORTED = b".", b"!"  # what a process says to its launcher
KILL = 10.0  # seconds until what has been killed has ended
PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


class ForkedProcess:
    """A process as its launcher sees it: what it reports, and a way to kill it.

    In the process `target(launcher, *args)` is called, with a `Launcher`. A report is a file in
    `folder`, which can be read in one go, and a byte that says it is complete. `begun` is true once
    the process has told so.
    """

    def __init__(self, folder: Path, target: Callable[..., None], *args: Any) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(_main, theirs, folder, target, args)
        except BaseException:
            self._socket.close()  # ends the process too, if it is on its way already
            raise
        self.pid: int = self._process.pid or 0
        self.begun = False
        self._report = folder / f"{self.pid}.report"

    @property
    def waitables(self) -> list[Any]:
        return [self._socket, self._process.sentinel]

    def send(self, *message: object) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(pickle.dumps(message))

    def hear(self) -> Outcome | None:
        code = self._process.exitcode  # first: what is then reported is all there will be
        with suppress(BlockingIOError, ConnectionError):
            while byte := self._socket.recv(1, socket.MSG_DONTWAIT):
                if byte == REPORTED:
                    outcome: Outcome = pickle.loads(self._report.read_bytes())
                    return outcome
                self.begun = True
        if code is None:
            return None
        if code == 255:  # so multiprocessing calls it when the server is gone
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, 0)  # it exists
                raise RuntimeError(SERVER_DIED)
        return Died(time.monotonic(), code)

    def kill(self) -> None:
        kill_tree(self.pid)
        self._process.kill()  # in case it had no group of its own yet

    def close(self) -> None:
        self._process.join()
        self._process.close()
        self._socket.close()


class Launcher:
    """The launcher as its process sees it: `messages` from it, in order, and where to report.

    When the launcher is gone, the process ends.
    """

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._socket, self.folder = connection, folder
        self._report = folder / f"{os.getpid()}.report"
        self.messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(self) -> None:
        self._socket.sendall(BEGUN)

    def report(self, outcome: Outcome) -> None:
        try:
            self._report.write_bytes(pickle.dumps(outcome))
        except OSError:
            os._exit(os.EX_IOERR)
        self._socket.sendall(REPORTED)

    def _listen(self) -> None:
        try:
            with suppress(EOFError, OSError), self._socket.makefile("rb") as stream:
                while True:
                    self.messages.put(pickle.load(stream))
        finally:
            os.killpg(0, signal.SIGKILL)


def _main(
    main_file: str | None,
    connection: socket.socket,
    folder: Path,
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    stand_in_for_main(main_file)
    # The server's method would start one more server here, which loads torch for each worker.
    multiprocessing.set_start_method("fork" if sys.platform == "linux" else None, force=True)
    os.setsid()  # a group of its own: Ctrl-C reaches the launcher alone; helpers end with us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server had it blocked
    adopt_orphans()
    target(Launcher(connection, folder), *args)


def adopt_orphans() -> None:
    """On Linux, whatever this process starts stays its descendant, also as an orphan."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_tree(pid: int) -> None:
    """Kill the leader of a process group with its group and all that has come from it.

    The leader is only stopped until nothing else runs, so that it still adopts orphans.
    """
    _send(os.kill, pid, signal.SIGSTOP)
    deadline = time.monotonic() + KILL
    before: set[int] | None = None  # all there were, when none of them ran
    while time.monotonic() < deadline:
        descendants = {*_descendants(pid)}
        running = [each for each in descendants if _runs(each)]
        for each in running:
            _send(os.kill, each, signal.SIGKILL)
        # One listing may miss a process whose parent dies while it is made; two alike do not.
        if not running and descendants == before:
            break
        before = None if running else descendants
        time.sleep(0.001)
    _send(os.killpg, pid, signal.SIGKILL)


def _send(kill: Callable[[int, int], None], pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, number)


def _runs(pid: int) -> bool:
    """True if it has not ended; a zombie has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has gone
        for children in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with suppress(OSError):  # a thread of it has
                for child in map(int, children.read_text().split()):
                    yield from _descendants(child)
                    yield child


# ---- the server ----

SERVER_DIED = (
    "the fork server, which starts and watches ranks and workers, has died or was killed; "
    "the next call starts another one"
)


_warm: int | None = None  # the server that has started a process


def _start(target: Callable[..., Any], *args: Any) -> ForkServerProcess:
    """Fork a process that calls `target(*args)`; the first one also starts the server.

    The main module is hidden from multiprocessing, which would run a script again in every process.
    cloudpickle packs what the function needs of it, so scripts need no `__main__` guard.
    """
    global _warm
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with main_lock:  # or a launch in another thread would take the stand-in for the real one
        main = sys.modules["__main__"]
        process = context.Process(target=target, args=(getattr(main, "__file__", None), *args))
        sys.modules["__main__"] = types.ModuleType("__main__")
        patience = time.monotonic() + 2
        try:
            while True:
                try:
                    _ensure_server()
                    process.start()
                    _warm = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                    return process
                except (EOFError, ConnectionError) as error:
                    # Refused by one that is dying: another can be started when it is a zombie.
                    dying = isinstance(error, ConnectionRefusedError)
                    if not dying or time.monotonic() > patience:
                        raise RuntimeError(SERVER_DIED) from error
                    time.sleep(0.01)
        finally:
            sys.modules["__main__"] = main


def end_cold_server() -> None:
    """Kill a server that still loads torch, for which the start of a process waits."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid and pid != _warm:
        _send(os.kill, pid, signal.SIGKILL)


def _ensure_server() -> None:
    resource_tracker.ensure_running()  # by itself, since it unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except ChildProcessError as error:  # it asks whether its child, the server, is still alive
        raise RuntimeError(
            "a process made by os.fork() cannot launch ranks or workers when the one that it was "
            "forked from has done so before: launch in that one, or fork first"
        ) from error
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        raise RuntimeError(
            f"TMPDIR: expected a path of at most 75 characters, since sockets lie in it, got "
            f"{len(tempfile.gettempdir())}: {tempfile.gettempdir()}"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
