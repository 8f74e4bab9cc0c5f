"""Threads of this process as the ring grader's stand-in for real ranks.

A thread cannot be killed: run them in a process that can, with `alone`. Every message is seen, and
ranks that wait for each other are found at once and named instead of being waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import torch

from course.ask.switchboard import Call, Deadlock, Part, Switchboard
from course.ask.verdict import patient, raised

PATIENCE = 5.0  # seconds for all threads to end

Exchange = Callable[[torch.Tensor, int, int], torch.Tensor]
"""exchange(tensor, to, source): send `tensor` to rank `to`, return what rank `source` sent us."""


class Message(NamedTuple):
    """One exchange, as its sender saw it: `step` counts the sender's exchanges from 0."""

    step: int
    rank: int
    to: int
    source: int
    sent: torch.Tensor


class Failed(Exception):
    """A rank's function raises, makes exchange after exchange, or does not come to its end."""


class Threads:
    """`ranks` threads of a ring's all-reduce; `messages` has all of their exchanges."""

    def __init__(self, ranks: int) -> None:
        self.messages: list[Message] = []
        self._ranks = ranks
        self._needs = f"it needs 2(N - 1) = {2 * (ranks - 1)} exchanges."
        self._answers: dict[tuple[int, int], Future[torch.Tensor]] = {}  # by rank and step
        self._board = Switchboard(ranks, self._answer)
        self._lock = threading.RLock()
        self._errors: list[Exception] = []

    def run(self, body: Callable[[int, Exchange], None]) -> None:
        """Call body(rank, exchange) for each rank at once, and raise the error that came first."""
        threads = [
            threading.Thread(target=self._run, args=(rank, body), daemon=True)
            for rank in range(self._ranks)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + patient(PATIENCE)
        for rank, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._errors.append(Failed(f"rank {rank} does not come to an end; {self._needs}"))
        if self._errors:
            raise self._errors[0]

    def _run(self, rank: int, body: Callable[[int, Exchange], None]) -> None:
        try:
            body(rank, partial(self._exchange, rank))
        except (Deadlock, Failed, NotImplementedError) as error:
            self._errors.append(error)
        except Exception as error:
            self._errors.append(Failed(f"on rank {rank} it raised {raised(error)}."))
        with self._lock:
            self._board.end(rank)

    def _exchange(self, rank: int, tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
        with self._lock:
            step, sent = sum(message.rank == rank for message in self.messages), tensor.clone()
            if step == 8 * self._ranks:
                raise Failed(f"rank {rank} makes exchange after exchange; {self._needs}")
            answer = self._answers[rank, step] = Future[torch.Tensor]()
            self.messages.append(Message(step, rank, to, source, sent))
            parts = [Part(to, sent.clone()), Part(source, sends=False)]
            name = f"exchange(to={to}, source={source})"
            self._board.post(rank, Call(step, "the threads'", name, parts=parts))
            self._board.stuck(rank, step, heard=step)
        return answer.result()

    def _answer(self, rank: int, step: int, error: str, received: Any) -> None:
        if error:
            self._answers[rank, step].set_exception(Deadlock(error))
        else:
            self._answers[rank, step].set_result(received[0])
