"""Processes that work through a list of tasks; what one that dies was at, another does again.

Workers share nothing. Each is given one task at a time and answers with a value or with what its
function raised. That is all it takes to recover: a task without an answer goes back in the queue.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from minidist.errors import TaskError
from minidist.launch import pickling
from minidist.launch.cleanup import Job
from minidist.launch.outcome import Died, Outcome, Raised, Returned, outcome_of
from minidist.launch.process import ForkedProcess, Launcher


class WorkerPool:
    def __init__(self, job: Job, workers: int, attempts: int, timeout: float) -> None:
        self._job, self.attempts, self.timeout = job, attempts, timeout
        self.deadline = time.monotonic() + timeout
        self.redone: list[str] = []
        self.shipped = self.returned = 0
        # The task that each worker is at.
        self._tasks: dict[ForkedProcess, int | None] = {
            job.start(main): None for _ in range(workers)
        }

    def run(
        self, kind: str, function: Callable[[int, Any], Any], items: Sequence[Any]
    ) -> list[Any]:
        names = [f"{kind} task {number}" for number in range(len(items))]
        waiting, failures = deque(range(len(items))), Counter[int]()
        values: dict[int, Any] = {}
        code = self._write(kind, function, f"the {kind} function")
        while len(values) < len(items):
            for worker in [worker for worker, task in self._tasks.items() if task is None]:
                if waiting:
                    self._tasks[worker] = task = waiting.popleft()
                    item = self._write(names[task], items[task], f"the input of {names[task]}")
                    worker.send(code, item, task)
                    self.shipped += code.stat().st_size + item.stat().st_size
            for task, outcome in self._outcomes(names):
                if isinstance(outcome, Returned):
                    self.returned += len(outcome.value)
                    values[task] = pickling.loads(outcome.value)
                    continue
                failures[task] += 1
                if failures[task] == self.attempts:
                    often = "once" if self.attempts == 1 else f"{self.attempts} times"
                    how = f"failed {often}; the last time its worker"
                    error = TaskError(names[task], f"{how} {outcome.describe('In the worker')}")
                    cause = outcome.exception() if isinstance(outcome, Raised) else None
                    raise error from cause
                self.redone.append(names[task])
                waiting.appendleft(task)
        return [values[task] for task in range(len(items))]

    def _outcomes(self, names: Sequence[str]) -> Iterator[tuple[int, Outcome]]:
        ends = {end: worker for worker in self._tasks for end in worker.waitables}
        ready = wait(list(ends), max(0.0, self.deadline - time.monotonic()))
        if not ready:
            at_work = [names[task] for task in self._tasks.values() if task is not None]
            raise TaskError(" and ".join(at_work), f"did not end within {self.timeout:g} s")
        heard = {ends[end] for end in ready}
        for worker in [worker for worker in self._tasks if worker in heard]:
            if outcome := worker.hear():
                task, self._tasks[worker] = self._tasks[worker], None
                if isinstance(outcome, Died):
                    del self._tasks[worker]
                    self._job.end(worker)
                    self._tasks[self._job.start(main)] = None
                if task is not None:  # or it died while it had nothing to do
                    yield task, outcome

    def _write(self, name: str, part: object, what: str) -> Path:
        try:
            blob = pickling.dumps(part)
        except Exception as error:
            raise TypeError(f"{what} cannot be sent to another process: {error}") from error
        path = self._job.folder / name
        path.write_bytes(blob)
        return path


def main(launcher: Launcher) -> None:
    torch.set_num_threads(1)  # workers share the cores
    while True:
        launcher.report(outcome_of(lambda: _do(*launcher.messages.get()), __file__))


def _do(code: Path, item: Path, task: int) -> Any:
    function, value = (pickling.loads(path.read_bytes()) for path in (code, item))
    return function(task, value)
