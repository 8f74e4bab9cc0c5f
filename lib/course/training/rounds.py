"""A small GPT that learns in rounds, while workers are killed and come back; and its oracle.

Each worker is a process, which can be killed, stopped and started again at any time. The `Quorum`
writes down who was in which round. With that, `replayed` computes in one process what the weights
must be, bit for bit.
"""

# mypy: disable-error-code=no-untyped-call
# (torch does not type `backward`, and the book shows these lines)

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.training.data import characters, text
from course.training.models import GPT
from course.training.quorum import Member, Quorum, Round
from from_scratch.local_sgd import DiLoCo
from minidist.launch import pickling
from minidist.launch.cleanup import Interrupts, Job, job
from minidist.launch.outcome import Outcome, Returned, outcome_of
from minidist.launch.process import ForkedProcess, Launcher
from minidist.train.text import rows_of

SECONDS = 60.0  # in which something has to happen, or the run is given up


class Work(NamedTuple):
    """The model, data and optimizers of every worker.

    Attributes:
        every: H, steps in a round.
        rows: sequences that a worker reads in a step.
        rate: of the inner AdamW.
        outer: learning rate and momentum of the outer SGD.
    """

    width: int = 32
    layers: int = 2
    context: int = 32
    every: int = 10
    rows: int = 4
    rate: float = 3e-3
    outer: tuple[float, float] = (0.7, 0.9)

    def model(self) -> GPT:
        """The same on every worker, but that does not matter: newcomers are given the weights."""
        torch.manual_seed(0)
        return GPT(len(_text()[1]), self.width, self.layers, context=self.context)

    def inner(self, model: GPT) -> torch.optim.AdamW:
        """A worker's own optimizer, as it is when the worker starts."""
        return torch.optim.AdamW(model.parameters(), self.rate)

    def loss(self, model: GPT, worker: int, step: int) -> Tensor:
        """On what this worker reads in this step, which depends on nothing else."""
        ids = rows_of(
            _text()[0], step, rows=self.rows, context=self.context, seed=worker, rank=0, ranks=1
        )
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@cache
def _text() -> tuple[Tensor, str]:
    return characters(text())


def work_in_rounds(path: Path, worker: int, work: Work) -> Tensor:
    """Train as a member of the quorum until that ends; return the weights."""
    model = work.model()
    member: Any = Member(path, worker)
    optimizer = DiLoCo(work.inner(model), member, work.every, *work.outer)
    member.join(optimizer)
    while not member.last:
        work.loss(model, worker, optimizer.steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        member.share(optimizer)
    return optimizer.start.detach()


class Run:
    """A run under way: its rounds so far, and workers to kill, to stop and to start."""

    def __init__(self, work: Work, workers: int, ours: Job, patience: float) -> None:
        self.rounds: list[Round] = []
        self.events: list[tuple[float, str, int]] = []  # when, what, and which worker
        self._work, self._job, self._path = work, ours, ours.folder / "quorum"
        self._ended: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self.quorum = Quorum(self._path, workers, patience, self._ended.put)
        self.processes: dict[int, ForkedProcess] = {}

    def start(self, worker: int) -> None:
        """Start a worker, or start it again."""
        self._note("start", worker)
        work = work_in_rounds, self._path, worker, self._work
        self.processes[worker] = self._job.start(on_worker, *work)

    def kill(self, worker: int) -> None:
        """SIGKILL: it can neither catch it nor say goodbye."""
        self.signal(worker, signal.SIGKILL)

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Send a worker this signal."""
        self._note(number.name, worker)
        os.kill(self.processes[worker].pid, number)

    def until(self, condition: Callable[[Round], bool]) -> None:
        """Wait for a round that satisfies the condition."""
        while True:
            try:
                self.rounds.append(self._ended.get(timeout=SECONDS))
            except queue.Empty:
                said = f"{len(self.rounds)} rounds have ended, and then none for {SECONDS:g} s"
                raise RuntimeError(said) from None
            if condition(self.rounds[-1]):
                return

    def finish(self) -> dict[int, Tensor]:
        """End the training after the next round; return the weights of those who were in it."""
        self.quorum.finish()
        self.until(lambda each: each.last)
        weights = {}
        for worker in self.rounds[-1].members:
            outcome = ended(self.processes[worker])
            if isinstance(outcome, Returned):
                weights[worker] = pickling.loads(outcome.value)
        return weights

    def _note(self, what: str, worker: int) -> None:
        self.events.append((time.monotonic(), what, worker))


@contextmanager
def running(work: Work, workers: int, patience: float = 30) -> Iterator[Run]:
    """Start a quorum and its workers; both are gone at the end of the block."""
    with Interrupts() as interrupts, job(interrupts) as ours, interrupts.allowed():
        run = Run(work, workers, ours, patience)
        with run.quorum:
            for worker in range(workers):
                run.start(worker)
            yield run


def on_worker(launcher: Launcher, function: Callable[..., object], *args: Any) -> None:
    """Report what a function returns, from a process that may die without the others."""
    torch.set_num_threads(1)
    launcher.report(outcome_of(lambda: function(*args), __file__))


def ended(process: ForkedProcess) -> Outcome:
    """The outcome of a worker, which may take it `SECONDS`."""
    while not (outcome := process.hear()):
        if not wait(process.waitables, SECONDS):
            raise RuntimeError(f"process {process.pid} has not ended in {SECONDS:g} s")
    return outcome


# [oracle]
def replayed(work: Work, rounds: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """In one process: the weights after each round, of a run with these members in each."""
    start = Parameter(parameters_to_vector(work.model().parameters()).detach())
    rate, momentum = work.outer
    outer, before = torch.optim.SGD([start], rate, momentum, nesterov=True), set[int]()
    replicas: dict[int, tuple[Any, Any]] = {}
    for number, members in enumerate(rounds):
        changes = []
        for worker in members:
            if worker not in before:  # its inner optimizer is new, too
                replica = work.model()
                replicas[worker] = replica, work.inner(replica)
            replica, inner = replicas[worker]
            vector_to_parameters(start.detach().clone(), replica.parameters())
            for step in range(number * work.every, (number + 1) * work.every):
                work.loss(replica, worker, step).backward()
                inner.step()
                inner.zero_grad()
            changes.append((start - parameters_to_vector(replica.parameters())).detach())
        start.grad = reduce(torch.add, changes) / len(changes)
        outer.step()
        before = set(members)
        yield start.detach().clone()


# [end]
