"""The meeting point of all ranks' calls: what runs, in which order, and who waits for whom.

The ranks may be processes that talk over an emulated NCCL, threads, or what a recording says.
A channel is what NCCL runs calls on, one after the other: the stream of a group, or of a pair of
ranks. The call at the head of a rank's queue runs when its counterparts are at the heads of theirs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any


class Deadlock(Exception):
    """Ranks wait for each other, or for one that has ended, or do not make the same calls."""


@dataclass
class Part:
    """A message of a call: to `peer`, with its data, or from it."""

    peer: int
    data: Any = None
    sends: bool = True
    done: bool = False


@dataclass
class Call:
    """A rank's post on a channel: a collective among `ranks`, or messages."""

    ticket: int  #: the caller's number for it
    channel: Hashable  #: what runs it
    name: str  #: as a person would say it: "isend to rank 1"
    ranks: Sequence[int] = ()  #: that make this collective, all with the same `sign`
    sign: str = ""
    payload: Any = None  #: what this rank brings to the collective
    parts: list[Part] = field(default_factory=list)  #: messages that travel together


class Switchboard:
    """Matches the calls of `ranks` ranks.

    Args:
        reply: called as reply(rank, ticket, error, value): a collective's value is the list of all
            payloads, that of messages is what was received, in the order of the parts. Once
            something is wrong, every ticket is answered by an error that says what.
    """

    def __init__(self, ranks: int, reply: Callable[[int, int, str, Any], None]) -> None:
        self._ranks, self._reply = ranks, reply
        self._queues: dict[Hashable, dict[int, deque[Call]]] = defaultdict(dict)
        self._answered = [0] * ranks
        self._stuck: dict[int, int] = {}  # rank → the ticket it waits for
        self._ended: set[int] = set()
        self._error = ""

    def post(self, rank: int, call: Call) -> None:
        """Queue a rank's call, and run what can run now."""
        queues = self._queues[call.channel]
        queues.setdefault(rank, deque()).append(call)
        if self._error:
            self._fail(self._error)
        while any(self._run(queues, other) for other in sorted(queues)):
            pass

    def stuck(self, rank: int, ticket: int, heard: int) -> None:
        """All threads of a rank wait, one for this ticket; the rank has heard so many answers."""
        if heard == self._answered[rank] and self._queue(rank, ticket):  # or it will run on
            self._stuck[rank] = ticket
            self._look_for_deadlock()

    def end(self, rank: int) -> None:
        """The rank makes no more calls."""
        self._ended.add(rank)
        self._look_for_deadlock()

    def _run(self, queues: dict[int, deque[Call]], rank: int) -> bool:
        if not queues[rank]:
            return False
        head = queues[rank][0]
        if head.parts:
            return self._deliver(queues, rank, head)
        heads = {other: queues[other][0] for other in head.ranks if queues.get(other)}
        for other, call in heads.items():
            waits = any(part.peer == rank and not part.done for part in call.parts)
            if waits or (call.sign != head.sign and not call.parts):
                self._fail(
                    f"ranks {rank} and {other} do not make the calls of their group in the same "
                    f"order: rank {rank} calls {head.name}, rank {other} {call.name}"
                )
                return False
        if len(heads) < len(head.ranks) or any(call.parts for call in heads.values()):
            return False  # messages that others are still to send or receive come first
        payloads = [heads[other].payload for other in head.ranks]
        for other in heads:
            self._answer(other, queues[other].popleft(), payloads)
        return True

    def _deliver(self, queues: dict[int, deque[Call]], rank: int, head: Call) -> bool:
        """Bring the head's messages from the heads of their senders."""
        moved = False
        for part in head.parts:
            sender = queues.get(part.peer)
            if part.sends or part.done or not sender:
                continue
            for sent in sender[0].parts:
                if sent.sends and not sent.done and sent.peer == rank and not part.done:
                    part.data, part.done, sent.done, moved = sent.data, True, True, True
        for other in (rank, *{part.peer for part in head.parts if part.done}):
            queue = queues[other]
            if queue and queue[0].parts and all(part.done for part in queue[0].parts):
                call = queue.popleft()
                self._answer(other, call, [part.data for part in call.parts if not part.sends])
        return moved

    def _answer(self, rank: int, call: Call, value: Any, error: str = "") -> None:
        self._answered[rank] += 1
        self._stuck.pop(rank, None)
        self._reply(rank, call.ticket, error, value)

    def _fail(self, error: str) -> None:
        self._error = error
        for queues in self._queues.values():
            for rank, queue in queues.items():
                while queue:
                    self._answer(rank, queue.popleft(), None, error)

    def _look_for_deadlock(self) -> None:
        if self._stuck and len(self._stuck.keys() | self._ended) == self._ranks:
            self._fail(self._why())

    def _why(self) -> str:
        """Follow who waits for whom until a rank comes again, or one that has ended."""
        rank, path, calls = min(self._stuck), list[int](), dict[int, Call]()
        while rank not in path and rank in self._stuck:
            path.append(rank)
            calls[rank] = self._queue(rank, self._stuck[rank])[0]
            rank = self._for_whom(rank, calls[rank])
        if rank not in self._stuck:
            *_, last = path
            return f"rank {last} waits for rank {rank}, which has ended: {calls[last].name}"
        circle = path[path.index(rank) :]
        who = "each other" if len(circle) == 2 else "one another in a circle"
        told = "; ".join(
            f"rank {a} for rank {b}, {calls[a].name}"
            for a, b in zip(circle, circle[1:] + circle[:1], strict=True)
        )
        return f"{len(circle)} ranks wait for {who}: {told}"

    def _queue(self, rank: int, ticket: int) -> Sequence[Call]:
        """The rank's queue with this ticket in it; empty if it has been answered."""
        queues = (each.get(rank, ()) for each in self._queues.values())
        return next((queue for queue in queues if ticket in [call.ticket for call in queue]), ())

    def _for_whom(self, rank: int, head: Call) -> int:
        if head.parts:
            return next(part.peer for part in head.parts if not part.done)
        queues = self._queues[head.channel]
        return next(r for r in head.ranks if not queues.get(r) or queues[r][0].parts)
