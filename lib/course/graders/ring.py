"""The grader of the ring written by hand: message by message against the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist

import minidist
from course.graders.verdict import Wrong, grader
from course.sandbox.threads import Deadlock, Endless, Exchange, Failed, Message, Room, between_ranks
from minidist.schedule.algorithms import ring_all_gather, ring_reduce_scatter
from minidist.schedule.algorithms import ring_all_reduce as ring
from minidist.schedule.schedule import Schedule
from minidist.schedule.simulate import Contributors, Event, Replay, replay

HandWritten = Callable[[int, int, list[torch.Tensor], Exchange], None]


@grader
def ring_all_reduce(function: HandWritten) -> str:
    """Grade function(rank, ranks, chunks, exchange), which must sum `chunks` over all ranks.

    First between threads, for 4 ranks and for other numbers of them, on chunks whose numbers tell
    where they came from; then once on real ranks.
    """
    first = _try(function, 4)
    for ranks in (2, 3, 5, 1):
        _try(function, ranks)
    return _on_real_ranks(function, 4) + _owner(first)


def _try(function: HandWritten, ranks: int) -> int:
    """Try it on `ranks` threads; return which chunk, counted from its own, a rank sends first."""
    room = Room(ranks, most=8 * ranks)
    held = [[_mark(rank, chunk, ranks) for chunk in range(ranks)] for rank in range(ranks)]
    where = f"With {ranks} ranks: "
    try:
        room.run(lambda rank, exchange: function(rank, ranks, list(held[rank]), exchange))
    except Failed as failed:
        error = failed.error
        raise Wrong(
            f"{where}on rank {failed.rank} it raised {type(error).__name__}: {error}"
        ) from error
    except Endless as endless:
        need = 2 * (ranks - 1)
        raise Wrong(f"{where}{endless}; it needs 2(N - 1) = {need} exchanges.") from endless
    except Deadlock as deadlock:
        _compare(where, room.messages, replay(ring(ranks)))  # if it finds the cause, the better
        raise Wrong(f"{where}a deadlock. {deadlock}, and nobody sends.") from deadlock
    expected, first = _closest(room.messages, ranks)
    _compare(where, room.messages, expected)
    _compare_end(where, held, ranks)
    return first


def _mark(rank: int, chunk: int, ranks: int) -> torch.Tensor:
    """A chunk that shows its origin: element [c, r] counts how often rank r's chunk c is in it."""
    mark = torch.zeros(ranks, ranks)
    mark[chunk, rank] = 1
    return mark.view(-1)


def _read(payload: torch.Tensor, ranks: int) -> list[tuple[int, Contributors]]:
    """The chunks in a payload, each with its contributors; none if it is not of a chunk's size."""
    if payload.numel() != ranks**2:
        return []
    rows = enumerate(payload.view(ranks, ranks).int().tolist())
    parts = [(chunk, tuple(Counter(dict(enumerate(row))).elements())) for chunk, row in rows]
    return [(chunk, who) for chunk, who in parts if who]


def _closest(messages: list[Message], ranks: int) -> tuple[Replay, int]:
    """The ring that starts with the chunk that rank 0 sent first: each start makes a right ring."""
    first = -1
    sent = [_read(m.sent, ranks) for m in messages if m.rank == 0 and m.step == 0]
    if sent and len(sent[0]) == 1:
        first = (sent[0][0][0] + 1) % ranks - 1
    chosen: Schedule = ring_reduce_scatter(ranks, first=first).then(
        ring_all_gather(ranks, first=first + 1), "ring all-reduce", "all_reduce"
    )
    return replay(chosen), first


def _compare(where: str, messages: list[Message], expected: Replay) -> None:
    ranks = expected.ranks
    made = {(m.step, m.rank): m for m in messages}
    extra = min(
        (m for m in messages if m.step >= expected.steps), default=None, key=lambda m: m[:2]
    )
    if extra:
        raise Wrong(
            f"{where}rank {extra.rank} makes more than {expected.steps} exchanges. "
            f"Each phase needs N - 1 = {ranks - 1}: a chunk has that many other ranks to see."
        )
    for event in sorted(expected.events):
        at = f"{where}step {event.step + 1} of {expected.steps}: rank {event.src}"
        message = made.get((event.step, event.src))
        if message is None:
            _too_few(where, made, event, ranks)
        else:
            _compare_message(at, message, event, ranks)


def _too_few(where: str, made: dict[tuple[int, int], Message], event: Event, ranks: int) -> None:
    count = sum(rank == event.src for _, rank in made)
    need = 2 * (ranks - 1)
    text = f"{where}rank {event.src} made {count} of the 2(N - 1) = {need} exchanges."
    if count == ranks - 1:
        text += " That is the first phase: each chunk's sum is still on one rank only."
    raise Wrong(text)


def _compare_message(at: str, message: Message, event: Event, ranks: int) -> None:
    if message.to != event.dst:
        raise Wrong(
            f"{at} sent to rank {message.to}, expected its right neighbour, rank {event.dst}."
        )
    left = (event.src - 1) % ranks
    if message.source != left:
        raise Wrong(
            f"{at} received from rank {message.source}, expected rank {left}, its left one."
        )
    if message.sent.numel() != ranks**2:
        raise Wrong(f"{at} sent {message.sent.numel()} of the {ranks**2} elements of a chunk.")
    parts = _read(message.sent, ranks)
    if len(parts) != 1:
        mixed = " and ".join(str(chunk) for chunk, _ in parts) or "none"
        raise Wrong(
            f"{at} sent a mixture of chunks ({mixed}): what came in went to the wrong slot."
        )
    chunk, who = parts[0]
    if chunk != event.chunk:
        hint = ""
        if event.step == ranks - 1:
            hint = (
                " The second phase must start with the chunk that the first phase completed here."
            )
        raise Wrong(f"{at} sent chunk {chunk}, expected chunk {event.chunk}.{hint}")
    if who != event.carried:
        raise Wrong(f"{at} sent chunk {chunk} {_parts(who)}, expected it {_parts(event.carried)}."
                    f"{_why(who, event.carried)}")  # fmt: skip


def _parts(who: Contributors) -> str:
    return f"with the part{'s' if len(who) != 1 else ''} of {'+'.join(map(str, who)) or 'nobody'}"


def _why(who: Contributors, expected: Contributors) -> str:
    if max(Counter(who).values(), default=0) > 1:
        return " A part is in it twice: it was added where it should have been overwritten."
    if set(who) < set(expected):
        return " A part is missing: what came in was not added."
    return ""


def _compare_end(where: str, held: list[list[torch.Tensor]], ranks: int) -> None:
    for rank, chunks in enumerate(held):
        for chunk, tensor in enumerate(chunks):
            parts = _read(tensor, ranks)
            if parts != [(chunk, tuple(range(ranks)))]:
                who = parts[0][1] if len(parts) == 1 else ()
                raise Wrong(
                    f"{where}every message is right, but at the end rank {rank} holds chunk "
                    f"{chunk} {_parts(who)}.{_why(who, tuple(range(ranks)))} "
                    "Write into chunks[...] in place."
                )


def _on_real_ranks(function: HandWritten, ranks: int) -> str:
    def work() -> tuple[bool, int]:
        rank = dist.get_rank()
        mine = torch.randn(1000)
        theirs = mine.clone()
        function(rank, ranks, list(mine.tensor_split(ranks)), between_ranks)
        with minidist.record() as log:
            minidist.all_reduce(theirs)
        return torch.allclose(mine, theirs, atol=1e-5), sum(sent.nbytes for sent in log)

    try:
        results = minidist.launch(work, ranks, device="cpu", timeout=30)
    except minidist.RankError as error:
        raise Wrong(f"On {ranks} real processes {str(error).splitlines()[0]}.") from error
    wrong = [rank for rank, (same, _) in enumerate(results) if not same]
    if wrong:
        raise Wrong(
            f"On {ranks} real processes the sums differ from all_reduce's on ranks {wrong}."
        )
    return (
        "your loop sends exactly the schedule's messages, for 1 to 5 ranks; on "
        f"{ranks} real processes it gives the sums of minidist.all_reduce, and each rank sends "
        f"{results[0][1]} bytes of a tensor of 4000: 2(N - 1)/N of it."
    )


def _owner(first: int) -> str:
    if first == -1:
        return " After the first phase rank r holds the sum of chunk r, as reduce-scatter must."
    return f" Note: your rank r starts with chunk r{first:+d}; minidist's starts with chunk r-1."
