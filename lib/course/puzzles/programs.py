"""The messages that readers write; and programs of ranks: where they meet, or why they never do."""

from __future__ import annotations

from minidist.schedule.replay import Fault

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Call = tuple[str, int, int, bool]


class Send:
    """One message: `width` chunks from `chunk` on, added to or written over the receiver's own."""

    def __init__(self, src: int, dst: int, chunk: int, reduce: bool, width: int = 1) -> None:
        self.src, self.dst, self.chunk, self.reduce, self.width = src, dst, chunk, reduce, width

    def __repr__(self) -> str:
        return f"Send({self.src}, {self.dst}, {self.chunk}, {self.reduce}, {self.width})"


def send(dst: int, chunk: int) -> Call:
    """A rank waits until `dst` receives the chunk."""
    return ("send", dst, chunk, False)


def recv(src: int, chunk: int, reduce: bool) -> Call:
    """A rank waits until `src` sends the chunk, and adds it to its own or overwrites that."""
    return ("recv", src, chunk, reduce)


def matched(function: Callable[..., object], name: str, ranks: int) -> Iterator[list[Send]]:
    """Run the programs of all ranks: in each step, those that wait for each other meet.

    Large messages need no buffer: a send ends only when its receive has begun. A list of both is
    posted at once, and its rank goes on when all of it is done.
    """
    programs = []
    for rank in range(ranks):
        program = function(rank, ranks)
        if not hasattr(program, "__iter__"):
            raise Fault(f"{name}({rank}, {ranks}) returns {program!r}: it has to yield.")
        programs.append(iter(program))
    waits: list[list[Call]] = [[] for _ in programs]  # each rank's posted calls
    while True:
        for rank, program in enumerate(programs):
            if not waits[rank]:
                waits[rank] = _next(program, rank, ranks)
        if not any(waits):
            return
        met = []
        for rank in range(ranks):
            for call in waits[rank]:
                answers = [each for each in waits[call[1]] if each[:2] == ("recv", rank)]
                if call[0] == "send" and answers:
                    met.append((rank, call, answers[0]))
        if not met:
            raise Fault(_deadlock(waits))
        messages = []
        for src, call, answer in met:
            _, dst, chunk, _ = call
            if chunk != answer[2]:
                raise Fault(
                    f"Rank {src} sends chunk {chunk!r} to rank {dst}, "
                    f"which expects chunk {answer[2]!r}."
                )
            waits[src].remove(call)
            waits[dst].remove(answer)
            messages.append(Send(src, dst, chunk, answer[3]))
        yield messages


def _next(program: Iterator[Any], rank: int, ranks: int) -> list[Call]:
    """The calls that a rank waits for next; none when its program is over."""
    for calls in program:
        batch = list(calls) if isinstance(calls, list) else [calls]
        for call in batch:
            if not (isinstance(call, tuple) and len(call) == 4 and call[0] in ("send", "recv")):
                raise Fault(
                    f"Rank {rank} yields {calls!r}: it may yield send(...), recv(...) or a list."
                )
            if call[1] not in range(ranks) or call[1] == rank:
                raise Fault(
                    f"Rank {rank} yields {call[0]} with rank {call[1]!r}, which is no other rank."
                )
        if batch:
            return batch
    return []


def _deadlock(waits: list[list[Call]]) -> str:
    """A sentence on who waits for whom: in a circle, or for one that has finished."""
    for rank, batch in enumerate(waits):
        for call in batch:
            if not waits[call[1]]:
                return f"R{_waiting(rank, call)[1:]}, which has finished."
    chain = [next(rank for rank, batch in enumerate(waits) if batch)]
    while waits[chain[-1]][0][1] not in chain:
        chain.append(waits[chain[-1]][0][1])
    circle = chain[chain.index(waits[chain[-1]][0][1]) :]
    links = [_waiting(rank, waits[rank][0]) for rank in circle]
    return f"Deadlock: {', '.join(links)}. None of them goes on."


def _waiting(rank: int, call: Call) -> str:
    end = "receives" if call[0] == "send" else "sends"
    return f"rank {rank} waits until rank {call[1]} {end}"
