"""Replay of a schedule, message by message, with a sentence for whatever goes wrong.

Instead of numbers each (rank, chunk) holds its *contributors*: the ranks whose parts are summed in
it. A sum is right when every rank is in it once. The idea of symbolic chunks that remember where
they came from is that of MSCCLang (Cowan et al., 2023).

Pictures, proofs and graders hand it a `Schedule`, by `minidist.schedule.traffic.replay`; the
puzzles in the book's pages, where this runs too, hand it what a reader wrote. So it imports
nothing, and a message is whatever has the fields of `minidist.schedule.schedule.Send`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

Contributors = tuple[int, ...]  # ranks in ascending order; a rank counted twice stands twice
State = tuple[tuple[Contributors, ...], ...]  # state[rank][chunk]
Goal = tuple[tuple[Contributors | None, ...], ...]  # None: whatever is left there
FIELDS = ("src", "dst", "chunk", "reduce", "width")  # attributes of a message


class Fault(Exception):
    """A mistake in a schedule, or in the answer to a puzzle, as a sentence for humans.

    Attributes:
        send: the message that cannot be sent or added, if that is the mistake.
        rank: the one that does not hold what this takes.
    """

    def __init__(self, sentence: str, send: object = None, rank: int = -1) -> None:
        super().__init__(sentence)
        self.send, self.rank = send, rank


class Event:
    """One chunk of one message: what was sent, and what the receiver holds after the step."""

    def __init__(
        self,
        step: int,
        src: int,
        dst: int,
        chunk: int,
        reduce: bool,
        carried: Contributors,
        result: Contributors,
    ) -> None:
        self.step, self.src, self.dst, self.chunk = step, src, dst, chunk
        self.reduce, self.carried, self.result = reduce, carried, result


class Replay:
    """The contents of each rank's chunks while the steps of a schedule pass.

    Attributes:
        start: what each (rank, chunk) holds before the first step.
        goal: what the collective promises; None where it leaves a chunk undefined.
        held: what is there now.
        sent: the messages of each step so far.
        events: each chunk of them, in order.
        phases: what each phase promises, and how many steps it takes.
    """

    def __init__(
        self,
        collective: str,
        ranks: int,
        chunks: int,
        root: int = 0,
        by: int = 0,
        name: str = "",
        phases: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.name, self.ranks, self.chunks, self.phases = name, ranks, chunks, phases
        self.start = start(collective, ranks, chunks, root)
        self.goal = goal(collective, ranks, chunks, root, by)
        self.held = [list(row) for row in self.start]
        self.sent: list[list[Any]] = []
        self.events: list[Event] = []

    @property
    def steps(self) -> int:
        """The number of steps that have passed."""
        return len(self.sent)

    def step(self, messages: Any) -> None:
        """Pass one step, in which all is sent as it was held before; an empty one does not count.

        Raises Fault if a rank does not hold what it sends, or what it adds to.
        """
        arrivals = []
        for send in messages:
            for chunk in range(send.chunk, send.chunk + send.width):
                carried, own = self.held[send.src][chunk], self.held[send.dst][chunk]
                if not carried or (send.reduce and not own):
                    raise self._nothing_there(send, bool(carried))
                result = tuple(sorted(own + carried)) if send.reduce else carried
                ends = send.src, send.dst, chunk, bool(send.reduce)
                arrivals.append(Event(self.steps, *ends, carried, result))
        for event in arrivals:  # only now: a step sends what was held before it
            self.held[event.dst][event.chunk] = event.result
        self.events += arrivals
        if messages:
            self.sent.append(list(messages))

    def _nothing_there(self, send: Any, received: bool) -> Fault:
        text = f"Step {self.steps + 1}: {words(send)}"
        if received:
            return Fault(f"{text}, which has nothing there to add it to.", send, send.dst)
        return Fault(f"{text}, but has nothing there to send.", send, send.src)

    def check(self, messages: Any, one_port: bool = False) -> None:
        """Raise Fault unless these are messages that can leave together as the next step.

        With `one_port` a rank sends one message per step, and receives one.
        """
        where = f"Step {self.steps + 1}"
        if not isinstance(messages, (list, tuple)):
            raise Fault(f"{where} is {messages!r}: a step is a list of Send(...).")
        for send in messages:
            _check_fields(where, send)
            _check_range(where, send, self.ranks, self.chunks)
        _check_races(where, messages)
        if one_port:
            _check_ports(where, messages)

    def state(self, after: int | None = None) -> State:
        """The contents of each rank's chunks after so many steps; after all by default."""
        held = [list(row) for row in self.start]
        for event in self.events:
            if after is None or event.step < after:
                held[event.dst][event.chunk] = event.result
        return tuple([tuple(row) for row in held])

    @property
    def wanted(self) -> int:
        """The number of (rank, chunk) pairs that the collective promises anything about."""
        return sum([want is not None for row in self.goal for want in row])

    def right(self) -> int:
        """The number of `wanted` (rank, chunk) pairs that end as the collective promises."""
        return self.wanted - len(self._mismatches())

    def wrong(self) -> list[str]:
        """Sentences about what is not as the collective promises, the most telling first."""
        found = self._mismatches()
        twice = [place for place in found if len(set(place[2])) < len(place[2])]
        sentences = [self._twice(*place[:2]) for place in twice[:1]]
        rest = [place for place in found if place not in twice]
        sentences += [_lack(*place, self.chunks) for place in rest[:3]]
        more = len(found) - len(sentences)
        if more and sentences:
            sentences.append(f"In all, {len(found)} chunks are wrong at the end.")
        return sentences

    def _mismatches(self) -> list[tuple[int, int, Contributors, Contributors]]:
        """(rank, chunk, held, promised) where the two differ."""
        found = []
        for rank in range(self.ranks):
            for chunk in range(self.chunks):
                have, want = self.held[rank][chunk], self.goal[rank][chunk]
                if want is not None and have != want:
                    found.append((rank, chunk, have, want))
        return found

    def _twice(self, rank: int, chunk: int) -> str:
        """A sentence about where parts of this chunk were first added twice: here, or before."""
        for event in self.events:
            parts = event.result
            if event.chunk == chunk and event.reduce and len(set(parts)) < len(parts):
                again = listing(sorted({part for part in parts if parts.count(part) > 1}), "rank")
                return (
                    f"Step {event.step + 1}: rank {event.src} sends chunk {chunk} to rank "
                    f"{event.dst}, which adds it, but both have the part of {again} in it. So it "
                    f"counts twice{f', on rank {rank} too' if event.dst != rank else ''}."
                )
        raise AssertionError("only a message that is added makes a part count twice")


# ---- what a collective promises ----


def start(collective: str, ranks: int, chunks: int, root: int = 0) -> State:
    """The precondition: which contributors each (rank, chunk) holds before the first step."""

    def held(rank: int, chunk: int) -> Contributors:
        return (rank,) if _origin(collective, ranks, chunk, root) in (None, rank) else ()

    return tuple([tuple([held(rank, c) for c in range(chunks)]) for rank in range(ranks)])


def goal(collective: str, ranks: int, chunks: int, root: int = 0, by: int = 0) -> Goal:
    """The postcondition; None where a collective leaves a chunk undefined."""
    everyone = tuple(range(ranks))

    def wanted(rank: int, chunk: int) -> Contributors | None:
        if _target(collective, ranks, chunk, root, by) not in (None, rank):
            return None
        origin = _origin(collective, ranks, chunk, root)
        return everyone if origin is None else (origin,)

    return tuple([tuple([wanted(rank, c) for c in range(chunks)]) for rank in range(ranks)])


def _origin(collective: str, ranks: int, chunk: int, root: int) -> int | None:
    """The rank that has this chunk at the start, if not all have their parts of it."""
    if collective in ("broadcast", "scatter"):
        return root
    if collective == "all_to_all":  # chunk s * N + d is the block from s to d
        return chunk // ranks
    return chunk if collective in ("all_gather", "gather", "shift") else None


def _target(collective: str, ranks: int, chunk: int, root: int, by: int) -> int | None:
    """The rank that is promised this chunk, if not all are."""
    if collective in ("reduce", "gather"):
        return root
    if collective in ("all_to_all", "shift"):
        return (chunk + by) % ranks
    return chunk if collective in ("reduce_scatter", "scatter") else None


# ---- sentences ----


def words(send: Any) -> str:
    """A message in words."""
    last = send.chunk + send.width - 1
    what = f"chunk {send.chunk}" if last == send.chunk else f"chunks {send.chunk} to {last}"
    return f"rank {send.src} sends {what} to rank {send.dst}"


def listing(things: Sequence[object], noun: str = "") -> str:
    """1, 2 and 3; with a noun: ranks 1, 2 and 3."""
    texts = [str(thing) for thing in things]
    several = f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
    return f"{noun}{'s' * (len(texts) > 1)} {several}" if noun else several


def _lack(rank: int, chunk: int, have: Contributors, want: Contributors, chunks: int) -> str:
    """A sentence about the part that a rank lacks, or has too much, at the end."""
    what = f"chunk {chunk}" if chunks > 1 else "the tensor"
    missing, foreign = sorted({*want} - {*have}), sorted({*have} - {*want})
    if not have:
        return f"Rank {rank} never receives {what}."
    if foreign:
        return f"Rank {rank} ends with the part of {listing(foreign, 'rank')} in {what}."
    return f"Rank {rank} ends without the part of {listing(missing, 'rank')} in {what}."


def _check_fields(where: str, send: Any) -> None:
    for name in FIELDS:
        if not hasattr(send, name):
            raise Fault(f"{where} has {send!r} in it: a step is a list of Send(...).")
        value = getattr(send, name)
        if name == "reduce":
            right, kind = value in (True, False), "True or False"
        else:
            right = isinstance(value, int) and not isinstance(value, bool)
            kind = "a whole number" if isinstance(value, float) else "a number"
        if not right:
            raise Fault(f"{where} has {send!r} in it, whose {name} is {value!r}, not {kind}.")


def _check_range(where: str, send: Any, ranks: int, chunks: int) -> None:
    for rank in (send.src, send.dst):
        if not 0 <= rank < ranks:
            raise Fault(f"{where}: {words(send)}. There is no rank {rank}, only 0 to {ranks - 1}.")
    if send.width < 1:
        raise Fault(f"{where}: a message from rank {send.src} has no chunks in it.")
    last = send.chunk + send.width - 1
    if send.chunk < 0 or last >= chunks:
        bad = send.chunk if send.chunk < 0 else last
        only = f"only 0 to {chunks - 1}" if chunks > 1 else "only 0, the full tensor"
        raise Fault(f"{where}: {words(send)}. There is no chunk {bad}, {only}.")
    if send.src == send.dst:
        raise Fault(f"{where}: {words(send)}, itself.")


def _check_races(where: str, messages: Sequence[Any]) -> None:
    sent, written, adds = set(), set(), set()
    for send in messages:
        sent |= {(send.src, chunk) for chunk in range(send.chunk, send.chunk + send.width)}
    for send in messages:
        if send.reduce and send.dst in adds:
            raise Fault(f"{where}: rank {send.dst} receives two messages to add.")
        if send.reduce:
            adds.add(send.dst)
        for chunk in range(send.chunk, send.chunk + send.width):
            place = (send.dst, chunk)
            if place in written:
                raise Fault(f"{where}: rank {send.dst} receives chunk {chunk} twice.")
            if place in sent and not send.reduce:
                other = f"rank {send.src} overwrites it"
                raise Fault(f"{where}: rank {send.dst} sends chunk {chunk} while {other}.")
            written.add(place)


def _check_ports(where: str, messages: Sequence[Any]) -> None:
    for end, verb in (("src", "sends"), ("dst", "receives")):
        used = set()
        for send in messages:
            rank = getattr(send, end)
            if rank in used:
                raise Fault(f"{where}: rank {rank} {verb} two messages, and may {verb[:-1]} one.")
            used.add(rank)
