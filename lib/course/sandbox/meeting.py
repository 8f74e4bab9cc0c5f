"""Collectives between threads of this process: the graders' stand-in for real ranks.

A call is carried out when every rank has come to it, as between real ranks. But here ranks that do
not agree, or that wait for one that has ended, are found at once and named, not waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Astray(Exception):
    """The ranks do not make the same call."""


class Raised(Exception):
    """The function raised on a rank."""

    def __init__(self, rank: int, error: Exception) -> None:
        super().__init__(f"on rank {rank} it raised {type(error).__name__}: {error}.")


class Call(NamedTuple):
    """What one rank came with."""

    name: str
    tensors: Any
    perform: Callable[[list[Any]], None]  # given all ranks' tensors


class Meeting:
    """`ranks` threads that make collective calls. Use once: `run`, then look at `made`."""

    def __init__(self, ranks: int, most: int = 100) -> None:
        self.ranks, self.most = ranks, most
        self.made: list[str] = []
        self._here: dict[int, Call] = {}
        self._ended: set[int] = set()
        self._turn = threading.Condition()
        self._error: Exception | None = None

    def run(self, body: Callable[[int], None]) -> None:
        """Call body(rank) for each rank at once.

        Raises:
            Raised: body raised; NotImplementedError passes as it is.
            Astray: naming the ranks and what they call.
        """
        threads = [
            threading.Thread(target=self._rank, args=(rank, body), daemon=True)
            for rank in range(self.ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error:
            raise self._error

    def broadcast(self, rank: int, tensor: torch.Tensor, src: int) -> None:
        """Overwrite every rank's `tensor` by that of rank `src`."""
        if src not in range(self.ranks):
            raise ValueError(f"src must be a rank, 0..{self.ranks - 1}, got {src!r}")

        def perform(tensors: list[torch.Tensor]) -> None:
            for each in tensors:
                each.copy_(tensors[src].clone())

        self._meet(rank, Call(f"broadcast(src={src})", tensor, perform))

    def all_to_all(
        self, rank: int, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Copy rank s's `inputs[d]` to rank d's `outputs[s]`, for all s and d."""
        if (len(outputs), len(inputs)) != (self.ranks, self.ranks):
            raise ValueError(
                f"all_to_all needs {self.ranks} outputs and inputs, "
                f"got {len(outputs)} and {len(inputs)}"
            )

        def perform(pairs: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]) -> None:
            sent = [[block.clone() for block in inputs] for _, inputs in pairs]
            for dst, (outputs, _) in enumerate(pairs):
                for src, output in enumerate(outputs):
                    output.copy_(sent[src][dst])

        self._meet(rank, Call("all_to_all", (outputs, inputs), perform))

    def _rank(self, rank: int, body: Callable[[int], None]) -> None:
        try:
            body(rank)
        except (Astray, NotImplementedError) as error:
            self._stop(error)
        except Exception as error:
            self._stop(Raised(rank, error))
        with self._turn:
            self._ended.add(rank)
            self._settle()

    def _meet(self, rank: int, call: Call) -> None:
        with self._turn:
            turn = len(self.made)
            self._here[rank] = call
            self._settle()
            self._turn.wait_for(lambda: len(self.made) > turn or self._error)
            if self._error:
                raise self._error

    def _settle(self) -> None:
        """Called with the lock held, when a rank has come or ended."""
        if self._error or not self._here or len(self._here) + len(self._ended) < self.ranks:
            return
        came = {rank: call.name for rank, call in sorted(self._here.items())}
        try:
            self._agree(came)
            self._here[0].perform([self._here[rank].tensors for rank in range(self.ranks)])
        except Exception as error:  # tensors that do not fit too
            self._error = error if isinstance(error, Astray) else Astray(str(error))
        self.made.append(came[min(came)])
        self._here.clear()
        self._turn.notify_all()

    def _agree(self, came: dict[int, str]) -> None:
        calls = ", ".join(f"rank {rank} {name}" for rank, name in came.items())
        if self._ended:
            ended = ", ".join(map(str, sorted(self._ended)))
            raise Astray(f"rank {ended} has ended, but others wait for it: {calls}")
        if len(set(came.values())) > 1:
            raise Astray(f"the ranks do not make the same call: {calls}")
        if len(self.made) >= self.most:
            raise Astray(f"the ranks make call after call: {calls}")

    def _stop(self, error: Exception) -> None:
        with self._turn:
            self._error = self._error or error
            self._turn.notify_all()
