"""The one communication call that the ring exercise needs: send to one rank, receive from another.

Two transports with the same meaning: between real ranks, and between threads of this process, where
every message is seen and a deadlock is found at once instead of being waited for.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

Exchange = Callable[[torch.Tensor, int, int], torch.Tensor]
"""exchange(tensor, to, source): send `tensor` to rank `to`, return what rank `source` sent us."""


def between_ranks(tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
    """Exchange 1-D tensors between real ranks: first the lengths, then the elements."""
    length = torch.empty(1, dtype=torch.int64)
    _both(torch.tensor([len(tensor)]), to, length, source)
    received = tensor.new_empty(int(length))
    _both(tensor.contiguous(), to, received, source)
    return received


def _both(out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
    ops = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


PATIENCE = 20.0  # seconds for all threads of a room to end


class Message(NamedTuple):
    """One exchange, as its sender saw it: `step` counts the sender's exchanges from 0."""

    step: int
    rank: int
    to: int
    source: int
    sent: torch.Tensor


class Deadlock(Exception):
    """Every rank that has not ended waits for a message that will not come."""


class Endless(Exception):
    """A rank makes exchange after exchange, or does not come to its end."""


class Failed(Exception):
    """The function raised on a rank."""

    def __init__(self, rank: int, error: Exception) -> None:
        super().__init__(rank, error)
        self.rank, self.error = rank, error


class Room:
    """`ranks` threads that exchange messages. Use once: `run`, then look at `messages`.

    `most`: exchanges that a rank may make.
    """

    def __init__(self, ranks: int, most: int = 1000) -> None:
        self.ranks, self.most = ranks, most
        self.messages: list[Message] = []
        self._post: dict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
        self._turn = threading.Condition()
        self._waiting: dict[int, int] = {}  # rank -> the rank it waits for
        self._ended = 0
        self._error: Exception | None = None

    def run(self, body: Callable[[int, Exchange], None]) -> None:
        """Call body(rank, exchange) for each rank at once.

        Raises:
            Failed: body raised; NotImplementedError passes as it is.
            Deadlock: naming who waits for whom.
            Endless: naming the rank.
        """
        threads = [
            threading.Thread(target=self._rank, args=(rank, body), daemon=True)
            for rank in range(self.ranks)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE
        for rank, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._stop(Endless(f"rank {rank} does not come to an end"))
        if self._error:
            raise self._error

    def _rank(self, rank: int, body: Callable[[int, Exchange], None]) -> None:
        steps = iter(range(1_000_000))
        try:
            body(
                rank,
                lambda tensor, to, source: self._exchange(next(steps), rank, tensor, to, source),
            )
        except (Deadlock, Endless, NotImplementedError) as error:
            self._stop(error)
        except Exception as error:
            self._stop(Failed(rank, error))
        with self._turn:
            self._ended += 1
            self._look_for_deadlock()

    def _exchange(
        self, step: int, rank: int, tensor: torch.Tensor, to: int, source: int
    ) -> torch.Tensor:
        if step >= self.most:
            raise Endless(f"rank {rank} makes exchange after exchange")
        with self._turn:
            self.messages.append(Message(step, rank, to, source, tensor.clone()))
            self._post[rank, to].append(tensor.clone())
            if self._waiting.get(to) == rank:
                del self._waiting[to]
            self._turn.notify_all()
            inbox = self._post[source, rank]
            if not inbox:
                self._waiting[rank] = source
                self._look_for_deadlock()
            self._turn.wait_for(lambda: inbox or self._error)
            self._waiting.pop(rank, None)
            if self._error:
                raise self._error
            return inbox.popleft()

    def _look_for_deadlock(self) -> None:
        """Called with the lock held, when a rank begins to wait or ends."""
        if self._error is None and self._waiting and len(self._waiting) + self._ended == self.ranks:
            who = ", ".join(
                f"rank {a} waits for rank {b}" for a, b in sorted(self._waiting.items())
            )
            self._error = Deadlock(who)
            self._turn.notify_all()

    def _stop(self, error: Exception) -> None:
        with self._turn:
            self._error = self._error or error
            self._turn.notify_all()
