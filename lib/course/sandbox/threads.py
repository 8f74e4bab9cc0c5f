"""Threads of this process as the graders' stand-in for real ranks.

A thread cannot be killed: run them in a process that can, with `alone`. Every message is seen, and
ranks that wait for each other, or do not make the same call, are found at once and named instead of
being waited for.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

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


class Mismatch(Exception):
    """The ranks do not make the same collective call."""


class Deadlock(Exception):
    """Every rank that has not ended waits for a message that will not come."""


class Endless(Exception):
    """A rank makes exchange after exchange, or does not come to its end."""


class Failed(Exception):
    """The function raised on a rank."""

    def __init__(self, rank: int, error: Exception) -> None:
        super().__init__(f"on rank {rank} it raised {type(error).__name__}: {error}")
        self.rank, self.error = rank, error


class Threads:
    """`ranks` threads that communicate. Use once: `run`, then look at what they did.

    A rank may make at most `most` exchanges, and all of them as many collective calls.
    """

    def __init__(self, ranks: int, most: int = 100) -> None:
        self.ranks, self.most = ranks, most
        self.messages: list[Message] = []
        self.made: list[str] = []
        self.moved = 0  # bytes that collective calls have brought from one rank to another
        self._post: dict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
        self._here: dict[int, tuple[str, Any]] = {}  # rank → its collective call, its tensors
        self._waiting: dict[int, tuple[int, Callable[[], bool]]] = {}  # rank → for whom, is it here
        self._ended: set[int] = set()
        self._turn = threading.Condition()
        self._error: Exception | None = None

    def run(self, body: Callable[[int, Rank], None]) -> None:
        """Call body(rank, its calls) for each rank at once; NotImplementedError passes as it is."""
        threads = [
            threading.Thread(target=self._run, args=(rank, body), daemon=True)
            for rank in range(self.ranks)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE
        for rank, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                with self._turn:
                    self._stop(Endless(f"rank {rank} does not come to an end"))
        if self._error:
            raise self._error

    def _run(self, rank: int, body: Callable[[int, Rank], None]) -> None:
        error: Exception | None = None
        try:
            body(rank, Rank(rank, self))
        except (Mismatch, Deadlock, Endless, NotImplementedError) as raised:
            error = raised
        except Exception as raised:
            error = Failed(rank, raised)
        with self._turn:
            if error:
                self._stop(error)
            self._ended.add(rank)
            self._look_for_deadlock()

    def exchange(self, message: Message) -> torch.Tensor:
        """Deliver a message, and wait for the one that its sender wants."""
        _, rank, to, source, tensor = message
        if message.step >= self.most:
            raise Endless(f"rank {rank} makes exchange after exchange")
        with self._turn:
            self.messages.append(message)
            self._post[rank, to].append(tensor.clone())
            inbox = self._post[source, rank]
            self._wait(rank, source, lambda: bool(inbox))
            return inbox.popleft()

    def meet(
        self, rank: int, name: str, tensors: Any, perform: Callable[[list[Any]], None]
    ) -> None:
        """Wait until all ranks make this call; the last one performs it on all ranks' tensors."""
        with self._turn:
            turn = len(self.made)
            self._here[rank] = name, tensors
            if len(self._here) == self.ranks:
                self._perform(perform)
            self._wait(rank, rank, lambda: len(self.made) > turn)

    def _perform(self, perform: Callable[[list[Any]], None]) -> None:
        if len({name for name, _ in self._here.values()}) > 1:
            self._stop(Mismatch(f"the ranks do not make the same call: {self._calls()}"))
        elif len(self.made) >= self.most:
            self._stop(Mismatch(f"the ranks make call after call: {self._calls()}"))
        else:
            try:
                perform([self._here[rank][1] for rank in range(self.ranks)])
            except Exception as error:  # tensors that do not fit
                self._stop(Mismatch(str(error)))
        self.made.append(self._here[0][0])
        self._here.clear()

    def _calls(self) -> str:
        return ", ".join(f"rank {rank} {name}" for rank, (name, _) in sorted(self._here.items()))

    def _wait(self, rank: int, for_whom: int, is_here: Callable[[], bool]) -> None:
        self._waiting[rank] = for_whom, is_here
        self._turn.notify_all()
        self._look_for_deadlock()
        self._turn.wait_for(lambda: self._error or is_here())
        del self._waiting[rank]
        if self._error:
            raise self._error

    def _look_for_deadlock(self) -> None:
        """Called with the lock held, when a rank begins to wait or ends."""
        waiting = {a: b for a, (b, is_here) in sorted(self._waiting.items()) if not is_here()}
        if not waiting or len(waiting) + len(self._ended) < self.ranks:
            return
        if self._here:
            ended = ", ".join(map(str, sorted(self._ended)))
            text = f"rank {ended} has ended, but others wait for it: {self._calls()}"
            self._stop(Mismatch(text))
        else:
            who = ", ".join(f"rank {a} waits for rank {b}" for a, b in waiting.items())
            self._stop(Deadlock(who))

    def _stop(self, error: Exception) -> None:
        self._error = self._error or error
        self._turn.notify_all()


class Rank:
    """The calls that one thread can make."""

    def __init__(self, rank: int, threads: Threads) -> None:
        self._rank, self._threads, self._steps = rank, threads, 0

    def exchange(self, tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
        """Send `tensor` to rank `to`, return what rank `source` sent us."""
        self._steps += 1
        message = Message(self._steps - 1, self._rank, to, source, tensor.clone())
        return self._threads.exchange(message)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Overwrite every rank's `tensor` by that of rank `src`."""
        ranks = self._threads.ranks
        if src not in range(ranks):
            raise ValueError(f"src must be a rank, 0..{ranks - 1}, got {src!r}")

        def perform(tensors: list[torch.Tensor]) -> None:
            if len({each.shape for each in tensors}) > 1:
                raise ValueError("the ranks' tensors do not have the same shape")
            self._threads.moved += (ranks - 1) * tensors[src].nbytes
            for each in tensors:
                each.copy_(tensors[src].clone())

        self._threads.meet(self._rank, f"broadcast(src={src})", tensor, perform)

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Copy rank s's `inputs[d]` to rank d's `outputs[s]`, for all s and d."""
        ranks = self._threads.ranks
        if (len(outputs), len(inputs)) != (ranks, ranks):
            raise ValueError(
                f"all_to_all needs {ranks} outputs and inputs, got {len(outputs)} and {len(inputs)}"
            )

        def perform(pairs: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]) -> None:
            sent = [[block.clone() for block in inputs] for _, inputs in pairs]
            for dst, (outputs, _) in enumerate(pairs):
                for src, output in enumerate(outputs):
                    self._threads.moved += sent[src][dst].nbytes if src != dst else 0
                    output.copy_(sent[src][dst])

        self._threads.meet(self._rank, "all_to_all", (outputs, inputs), perform)
