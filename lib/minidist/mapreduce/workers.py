"""Processes that work through a list of tasks; what one that dies was at, another does again.

Workers know nothing of each other and share nothing. Each is given one task at a time and answers
with a value or with what its function raised. That is all it takes to recover: a task without an
answer is put back in the queue.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from signal import SIGKILL, Signals
from typing import Any, NamedTuple

import torch

from minidist.errors import TaskError
from minidist.launch import pickling, server


class Returned(NamedTuple):
    """The function came to its end. `value`: cloudpickle of what it returned."""

    value: bytes


@dataclass(frozen=True)
class Raised:
    """The function raised. `frames`: (file, line, function) of each call, outermost first.

    The caller's process adds the source lines, since only it knows those of a notebook's cells.
    `error`: cloudpickle of the exception, or None if it cannot be pickled.
    """

    summary: str
    frames: list[tuple[str, int, str]]
    error: bytes | None

    def __str__(self) -> str:
        frames = [traceback.FrameSummary(file, line, name) for file, line, name in self.frames]
        calls = "".join(traceback.StackSummary.from_list(frames).format())
        return f"raised {self.summary}\n\nIn the worker (most recent call last):\n{calls}"


class Killed(NamedTuple):
    """The worker ended without an answer. `code`: its exit code, or minus the signal's number."""

    code: int

    def __str__(self) -> str:
        if -self.code in set(Signals):
            return f"was killed by {Signals(-self.code).name}"
        return f"left with exit code {self.code}"


Answer = Returned | Raised | Killed


class Crew:
    """A number of worker processes, there as long as the `with` block lasts.

    Attributes:
        redone: names of the tasks that had to be done again, in order, once for each time.
        shipped: bytes of functions and inputs that were sent to workers.
        returned: bytes of the values that came back.
    """

    def __init__(self, workers: int, attempts: int, timeout: float) -> None:
        self.attempts, self.timeout = attempts, timeout
        self.deadline = time.monotonic() + timeout
        self.redone: list[str] = []
        self.shipped = self.returned = 0
        self._count, self._workers = workers, list[_Worker]()

    def __enter__(self) -> Crew:
        try:
            for _ in range(self._count):
                self._workers.append(_Worker())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def run(
        self, kind: str, function: Callable[[int, Any], Any], items: Sequence[Any]
    ) -> list[Any]:
        """Return [function(0, items[0]), function(1, items[1]), ...], computed by the workers.

        Raises:
            TaskError: naming the task, "`kind` task 3".
            TypeError: the function or an item cannot be sent to another process.
        """
        names = [f"{kind} task {number}" for number in range(len(items))]
        waiting, failures = deque(range(len(items))), Counter[int]()
        values: dict[int, Any] = {}
        blob = _pickled(function, f"the {kind} function")
        while len(values) < len(items):
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    item = _pickled(items[worker.task], f"the input of {names[worker.task]}")
                    self.shipped += worker.give(blob, item)
            for task, answer in self._answers(names):
                if isinstance(answer, Returned):
                    self.returned += len(answer.value)
                    values[task] = pickling.loads(answer.value)
                    continue
                failures[task] += 1
                if failures[task] == self.attempts:
                    raise _failed(names[task], self.attempts, answer)
                self.redone.append(names[task])
                waiting.appendleft(task)
        return [values[task] for task in range(len(items))]

    def _answers(self, names: Sequence[str]) -> Iterator[tuple[int, Answer]]:
        """What workers have to say of their tasks; waits for the first one. Replaces the dead."""
        for place, worker in self._heard(names).items():
            answer, task = worker.hear(), worker.task
            worker.task = None
            if isinstance(answer, Killed):
                self._workers[place] = _Worker()
                worker.end()
            if task is not None:  # or it died while it had nothing to do
                yield task, answer

    def _heard(self, names: Sequence[str]) -> dict[int, _Worker]:
        """Place → worker, of those that have answered or died; waits for the first one."""
        ends: dict[Any, int] = {worker.pipe: place for place, worker in enumerate(self._workers)}
        ends |= {worker.process.sentinel: place for place, worker in enumerate(self._workers)}
        ready = wait(list(ends), max(0.0, self.deadline - time.monotonic()))
        if not ready:
            at_work = [names[worker.task] for worker in self._workers if worker.task is not None]
            raise TaskError(" and ".join(at_work), f"did not end within {self.timeout:g} s")
        return {place: self._workers[place] for place in sorted({ends[end] for end in ready})}


class _Worker:
    """A worker as its crew sees it. `task`: number of the task that it is at."""

    def __init__(self) -> None:
        self.task: int | None = None
        self.pipe, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self.process = server.start(main, theirs)
        except BaseException:
            self.pipe.close()
            raise

    def give(self, function: bytes, item: bytes) -> int:
        """Send a task; return its bytes. If the worker is gone, `hear` will say so."""
        with suppress(OSError):
            self.pipe.send((self.task, function, item))
        return len(function) + len(item)

    def hear(self) -> Answer:
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                answer: Returned | Raised = self.pipe.recv()
                return answer
        self.process.join()
        return Killed(self.process.exitcode or 0)

    def end(self) -> None:
        """End the worker and every process that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, SIGKILL)
        self.process.kill()  # in case it had no group of its own yet
        self.process.join()
        self.process.close()
        self.pipe.close()


def main(pipe: Connection) -> None:
    """Entry point of a worker: do one task after the other until the caller is gone."""
    os.setsid()  # a group of its own: Ctrl-C reaches the caller alone
    torch.set_num_threads(1)  # workers share the cores
    inbox: queue.SimpleQueue[tuple[int, bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    while True:
        pipe.send(_answer(*inbox.get()))


def _listen(pipe: Connection, inbox: queue.SimpleQueue[tuple[int, bytes, bytes]]) -> None:
    """Pass tasks on; when the caller has closed its end or is gone, end, whatever is being done."""
    with suppress(EOFError, OSError):
        while True:
            inbox.put(pipe.recv())
    os.killpg(0, SIGKILL)


def _answer(task: int, function: bytes, item: bytes) -> Returned | Raised:
    try:
        value = pickling.loads(function)(task, pickling.loads(item))
        return Returned(pickling.dumps(value))
    except BaseException as error:  # SystemExit too: no task may end its worker in silence
        calls = traceback.extract_tb(error.__traceback__)
        frames = [(c.filename, c.lineno or 0, c.name) for c in calls if c.filename != __file__]
        summary = "".join(traceback.format_exception_only(error)).strip()
        try:
            blob = pickling.dumps(error)
            pickling.loads(blob)
        except Exception:
            blob = None
        return Raised(summary, frames, blob)


def _failed(name: str, attempts: int, answer: Raised | Killed) -> TaskError:
    often = "once" if attempts == 1 else f"{attempts} times"
    error = TaskError(name, f"failed {often}; the last time its worker {answer}")
    if isinstance(answer, Raised) and answer.error is not None:
        with suppress(Exception):  # its class may be known to the worker alone
            error.__cause__ = pickling.loads(answer.error)
    return error


def _pickled(part: object, what: str) -> bytes:
    try:
        blob: bytes = pickling.dumps(part)
        return blob
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to another process: {error}") from error
