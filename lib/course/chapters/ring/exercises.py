"""Graders of the lab on the ring: its bytes, its crossing with the tree, and it by hand."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.distributed as dist

import minidist
from course.ask.averages import off
from course.ask.crossing import Crossing, check_crossing
from course.ask.ranks import Check, Cost, Traffic, on_worlds
from course.ask.ranks import exchange as real_exchange
from course.ask.switchboard import Deadlock
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Grader, Wrong, alone, draws, formula
from course.chapters.ring.threads import Exchange, Failed, Message, Threads
from minidist.schedule import algorithms
from minidist.schedule.replay import Contributors, Event, Replay
from minidist.schedule.traffic import replay, traffic

ELEMENTS = 1003  # on real ranks: not all chunks are equally long
HandWritten = Callable[[int, int, list[torch.Tensor], Exchange], None]


@Exercise
def bytes_sent() -> Table:
    """Grade function(ranks, nbytes): the bytes that each rank sends in a ring all-reduce."""
    draw = draws(7)
    chunks = [(ranks, 3000) for ranks in (8, 4, 2, 3, 1)]
    chunks += [(draw.randrange(5, 99), draw.randrange(100, 9999)) for _ in range(4)]
    cases = [(ranks, 4 * chunk * ranks) for ranks, chunk in chunks]
    return numbers(
        within=0.5,
        cases=cases,
        right=lambda n, size: traffic(algorithms.ring_all_reduce(n), size // 4).sent_bytes[0],
        told="For {} ranks and {} bytes",
        slips={
            "That is one phase; the all-gather sends as much again.":
                lambda n, size: (n - 1) * size / n,
            "That is the limit for many ranks; a chunk is not sent to its own rank.":
                lambda n, size: 2 * size,
            "Each message is one chunk, a 1/N of the tensor, not all of it.":
                lambda n, size: 2 * (n - 1) * size,
            "That is what the root of the naive way sends.": lambda n, size: (n - 1) * size,
            "That is the number of messages; each has size / N bytes.": lambda n, size: 2 * (n - 1),
            "Those are elements; each has 4 bytes. `nbytes` is in bytes already.":
                lambda n, size: 2 * (n - 1) * size / n / 4,
            "Those are bits.": lambda n, size: 16 * (n - 1) * size / n,
        },
        solved=f"for {{cases}} cases, from 1 to {max(cases)[0]} ranks: the simulator counts the "
        "same. With more and more ranks the bytes approach twice the tensor and never reach it.",
    )  # fmt: skip


@formula
def crossover(function: Crossing) -> str:
    """Grade function(ranks, alpha, beta): the bytes at which ring and tree take the same time."""
    ways = {"the ring": algorithms.ring_all_reduce, "the tree": algorithms.tree_all_reduce}
    why = "The tree has 2 ceil(log2 N) steps of the whole tensor, the ring 2(N - 1) of an N-th."
    drawn = draws(9).sample(range(5, 70), 4)
    for ranks in (8, 4, 16, 100, *drawn):
        check_crossing(function, ranks, ways, above="the ring", why=why)
    return (
        f"for {4 + len(drawn)} numbers of ranks from 4 to 100, and several links: at your size the "
        "cost model gives ring and tree the same time. Below it the tree wins, above it the ring."
    )


# ---- the ring by hand ----


@Grader
def ring_all_reduce(function: HandWritten) -> str:
    """Grade function(rank, ranks, chunks, exchange), which must sum `chunks` over all ranks.

    First between threads, for 4 ranks and for other numbers of them, on chunks whose numbers tell
    where they came from; then once on real ranks.
    """
    first, *_ = alone(lambda: [_try(function, ranks) for ranks in (4, 2, 3, 5, 1, 7)])
    note = "After the first phase rank r holds the sum of chunk r, as reduce-scatter must."
    if first != -1:
        note = f"Note: your rank r starts with chunk r{first:+d}; minidist's starts with chunk r-1."
    case = {f"with {ELEMENTS:,} elements": (function,)}
    on_worlds(_on_real_ranks, case, instead="`exchange`", worlds=(4,))
    return (
        "for 1, 2, 3, 4, 5 and 7 ranks: your loop sends exactly the schedule's messages. On 4 real "
        "processes it gives the sums of minidist.all_reduce, and all ranks together send "
        f"{24 * ELEMENTS:,} bytes for a tensor of {4 * ELEMENTS:,}: each of them 2(N - 1)/N of it. "
        f"{note}"
    )


def _try(function: HandWritten, ranks: int) -> int:
    """Try it on `ranks` threads; return which chunk, counted from its own, a rank sends first."""
    threads = Threads(ranks)
    # Element [c, r] of a chunk counts how often rank r's chunk c is in it.
    held = torch.eye(ranks**2).view(ranks, ranks, ranks**2).transpose(0, 1)
    where = f"With {ranks} ranks: "
    try:
        threads.run(lambda r, exchange: function(r, ranks, list(held[r]), exchange))
    except Failed as failed:
        raise Wrong(f"{where}{failed}") from failed
    except Deadlock as deadlock:  # if comparing finds the cause, the better
        _compare(where, threads.messages, replay(algorithms.ring_all_reduce(ranks)))
        raise Wrong(f"{where}a deadlock. {deadlock}.") from deadlock
    expected, first = _closest(threads.messages, ranks)
    _compare(where, threads.messages, expected)
    _compare_end(where, held)
    return first


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
    scatter = algorithms.ring_reduce_scatter(ranks, first=first)
    gather = algorithms.ring_all_gather(ranks, first=first + 1)
    return replay(scatter.then(gather, "ring all-reduce", "all_reduce")), first


def _compare(where: str, messages: list[Message], expected: Replay) -> None:
    ranks = expected.ranks
    made = {(m.step, m.rank): m for m in messages}
    if extra := sorted(key for key in made if key[0] >= expected.steps):
        (_, rank), *_ = extra
        raise Wrong(
            f"{where}rank {rank} makes more than {expected.steps} exchanges. "
            f"Each phase needs N - 1 = {ranks - 1}: a chunk has that many other ranks to see."
        )
    for event in sorted(expected.events, key=lambda event: (event.step, event.src)):
        at = f"{where}step {event.step + 1} of {expected.steps}: rank {event.src}"
        message = made.get((event.step, event.src))
        if message is None:
            count = sum(rank == event.src for _, rank in made)
            need = f"2(N - 1) = {expected.steps} exchanges"
            text = f"{where}rank {event.src} made {count} of the {need}."
            if count == ranks - 1:
                text += " That is the first phase: each chunk's sum is still on one rank only."
            raise Wrong(text)
        if why := _why_message(message, event, ranks):
            raise Wrong(f"{at} {why}")


def _why_message(message: Message, event: Event, ranks: int) -> str:
    if message.to != event.dst:
        return f"sent to rank {message.to}, expected its right neighbor, rank {event.dst}."
    left = (event.src - 1) % ranks
    if message.source != left:
        return f"received from rank {message.source}, expected rank {left}, its left."
    if (count := message.sent.numel()) != ranks**2:
        return f"sent {count} elements, expected the {ranks**2} of one chunk."
    parts = _read(message.sent, ranks)
    if len(parts) != 1:
        mixed = " and ".join(str(chunk) for chunk, _ in parts) or "none"
        return f"sent a mixture of chunks ({mixed}): what came in went to the wrong slot."
    chunk, who = parts[0]
    if chunk != event.chunk:
        text = " The second phase must start with the chunk that the first phase completed here."
        why = text if event.step == ranks - 1 else ""
        return f"sent chunk {chunk}, expected chunk {event.chunk}.{why}"
    if who != event.carried:
        why = _why(who, event.carried)
        return f"sent chunk {chunk} {_parts(who)}, expected it {_parts(event.carried)}.{why}"
    return ""


def _parts(who: Contributors) -> str:
    return f"with the part{'s' if len(who) != 1 else ''} of {'+'.join(map(str, who)) or 'nobody'}"


def _why(who: Contributors, expected: Contributors) -> str:
    if max(Counter(who).values(), default=0) > 1:
        return " A part is in it twice: it was added where it should have been overwritten."
    if set(who) < set(expected):
        return " A part is missing: what came in was not added."
    return ""


def _compare_end(where: str, held: torch.Tensor) -> None:
    ranks, everyone = len(held), tuple(range(len(held)))
    for rank, chunk in product(everyone, everyone):
        parts = _read(held[rank, chunk], ranks)
        if parts != [(chunk, everyone)]:
            who = parts[0][1] if len(parts) == 1 else ()
            raise Wrong(
                f"{where}every message is right, but at the end rank {rank} holds chunk {chunk} "
                f"{_parts(who)}.{_why(who, everyone)} Write into chunks[...] in place."
            )


def _on_real_ranks(function: HandWritten) -> Iterator[Check]:
    ranks, mine = dist.get_world_size(), torch.randn(ELEMENTS)
    theirs, sent = mine.clone(), list[int]()

    def exchange(tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
        sent.append(tensor.nbytes)
        return real_exchange(tensor, to, source)

    with minidist.record() as log:
        function(dist.get_rank(), ranks, list(mine.tensor_split(ranks)), exchange)
    if log:
        raise Wrong("your function calls minidist. Use `exchange` and nothing else.")
    minidist.all_reduce(theirs)
    parts = (each.tensor_split(ranks) for each in (mine, theirs))
    for chunk, (found, right) in enumerate(zip(*parts, strict=True)):
        what = f"at the end chunk {chunk}, of {len(right)} elements,"
        yield off(what, found, right, otherwise=(
            "is not the sum over all ranks, as whole numbers were between threads. Is anything "
            "rounded, or are chunks taken for equally long?"
        ))  # fmt: skip
    took = Traffic(sum(sent), len(sent))
    yield Cost(took, 2 * (ranks - 1) * mine.nbytes, 2 * (ranks - 1), "the sums are right")
