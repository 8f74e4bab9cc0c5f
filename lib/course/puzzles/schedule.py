"""A schedule on symbolic chunks, step by step, with a sentence for whatever goes wrong.

`minidist.schedule` says the same with arrays, for thousands of ranks; tests hold the two together.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Task = dict[str, Any]  # what the page brings: see `tasks`
    Parts = tuple[int, ...]


class Fault(Exception):
    """A mistake in what the reader wrote, as a sentence for humans."""


class Send:
    """One message: `width` chunks from `chunk` on, added to or written over the receiver's own."""

    def __init__(self, src: int, dst: int, chunk: int, reduce: bool, width: int = 1) -> None:
        self.src, self.dst, self.chunk, self.reduce, self.width = src, dst, chunk, reduce, width

    def __repr__(self) -> str:
        return f"Send({self.src}, {self.dst}, {self.chunk}, {self.reduce}, {self.width})"


FIELDS = ("src", "dst", "chunk", "reduce", "width")


def said(send: Send) -> str:
    """A message in words."""
    last = send.chunk + send.width - 1
    what = f"chunk {send.chunk}" if last == send.chunk else f"chunks {send.chunk} to {last}"
    return f"rank {send.src} sends {what} to rank {send.dst}"


def listed(things: Sequence[object], noun: str = "") -> str:
    """1, 2 and 3; with a noun: ranks 1, 2 and 3."""
    texts = [str(thing) for thing in things]
    several = f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
    return f"{noun}{'s' * (len(texts) > 1)} {several}" if noun else several


class Event:
    """One chunk of one message, as `minidist.schedule.simulate.Event` has it."""

    def __init__(self, step: int, send: Send, chunk: int, carried: Parts, result: Parts) -> None:
        self.step, self.src, self.dst, self.chunk = step, send.src, send.dst, chunk
        self.reduce, self.carried, self.result = bool(send.reduce), carried, result


class Play:
    """What each rank holds while the steps of a schedule pass: for each chunk, whose parts."""

    def __init__(
        self, collective: str, ranks: int, chunks: int, root: int = 0, by: int = 0
    ) -> None:
        self.collective, self.ranks, self.chunks, self.by = collective, ranks, chunks, by
        everyone = tuple(range(ranks))
        self.start: list[list[Parts]] = []
        self.goal: list[list[Parts | None]] = []
        for rank in range(ranks):
            begins: list[Parts] = []
            ends: list[Parts | None] = []
            for chunk in range(chunks):
                origin = _origin(collective, ranks, chunk, root)
                target = _target(collective, ranks, chunk, root, by)
                begins.append((rank,) if origin in (None, rank) else ())
                promised = everyone if origin is None else (origin,)
                ends.append(promised if target in (None, rank) else None)
            self.start.append(begins)
            self.goal.append(ends)
        self.held = [row[:] for row in self.start]
        self.sent: list[list[Send]] = []
        self.events: list[Event] = []

    @property
    def steps(self) -> int:
        """How many have passed."""
        return len(self.sent)

    def step(self, messages: object, one_port: bool = False) -> None:
        """Pass one step, in which all is sent as it was held before; an empty one does not count.

        With `one_port` a rank sends one message per step, and receives one.
        """
        where = f"Step {self.steps + 1}"
        if not isinstance(messages, (list, tuple)):
            raise Fault(f"{where} is {messages!r}: a step is a list of Send(...).")
        for send in messages:
            self._check(where, send)
        _check_races(where, messages)
        if one_port:
            _check_ports(where, messages)
        arrivals = []
        for send in messages:
            for chunk in range(send.chunk, send.chunk + send.width):
                carried, own = self.held[send.src][chunk], self.held[send.dst][chunk]
                if not carried:
                    raise Fault(f"{where}: {said(send)}, but has nothing there to send.")
                if send.reduce and not own:
                    raise Fault(f"{where}: {said(send)}, which has nothing there to add it to.")
                result = tuple(sorted(own + carried)) if send.reduce else carried
                arrivals.append(Event(self.steps, send, chunk, carried, result))
        for event in arrivals:
            self.held[event.dst][event.chunk] = event.result
        self.events += arrivals
        if messages:
            self.sent.append(list(messages))

    def _check(self, where: str, send: Send) -> None:
        for name in FIELDS:
            if not hasattr(send, name):
                raise Fault(f"{where} has {send!r} in it: a step is a list of Send(...).")
            value = getattr(send, name)
            if name == "reduce":
                right, kind = value in (True, False), "True or False"
            else:
                right, kind = isinstance(value, int) and not isinstance(value, bool), "a number"
                kind = "a whole number" if isinstance(value, float) else kind
            if not right:
                raise Fault(f"{where} has {send!r} in it, whose {name} is {value!r}, not {kind}.")
        n, chunks = self.ranks, self.chunks
        for rank in (send.src, send.dst):
            if not 0 <= rank < n:
                raise Fault(f"{where}: {said(send)}. There is no rank {rank}, only 0 to {n - 1}.")
        if send.width < 1:
            raise Fault(f"{where}: a message from rank {send.src} has no chunks in it.")
        last = send.chunk + send.width - 1
        if send.chunk < 0 or last >= chunks:
            bad = send.chunk if send.chunk < 0 else last
            only = f"only 0 to {chunks - 1}" if chunks > 1 else "only 0, the full tensor"
            raise Fault(f"{where}: {said(send)}. There is no chunk {bad}, {only}.")
        if send.src == send.dst:
            raise Fault(f"{where}: {said(send)}, itself.")

    def wrong(self) -> list[str]:
        """Sentences about what is not as the collective promises, the most telling first."""
        found = []
        for rank in range(self.ranks):
            for chunk in range(self.chunks):
                have, want = self.held[rank][chunk], self.goal[rank][chunk]
                if want is not None and have != want:
                    found.append((rank, chunk, have, want))
        twice = [place for place in found if len(set(place[2])) < len(place[2])]
        sentences = [self._twice(*place[:2]) for place in twice[:1]]
        rest = [place for place in found if place not in twice]
        sentences += [_lack(*place, self.chunks) for place in rest[:3]]
        more = len(found) - len(sentences)
        if more and sentences:
            sentences.append(f"In all, {len(found)} chunks are wrong at the end.")
        return sentences

    def _twice(self, rank: int, chunk: int) -> str:
        """Where parts of this chunk were first added twice: at this rank, or at one before it."""
        for event in self.events:
            parts = event.result
            if event.chunk == chunk and event.reduce and len(set(parts)) < len(parts):
                again = listed(sorted({part for part in parts if parts.count(part) > 1}), "rank")
                return (
                    f"Step {event.step + 1}: rank {event.src} sends chunk {chunk} to rank "
                    f"{event.dst}, which adds it, but both have the part of {again} in it. So it "
                    f"counts twice{f', on rank {rank} too' if event.dst != rank else ''}."
                )
        raise AssertionError("only a message that is added makes a part count twice")


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


def _lack(rank: int, chunk: int, have: Parts, want: Parts, chunks: int) -> str:
    """What a rank has too little or too much of, at the end."""
    what = f"chunk {chunk}" if chunks > 1 else "the tensor"
    missing, foreign = sorted({*want} - {*have}), sorted({*have} - {*want})
    if not have:
        return f"Rank {rank} never receives {what}."
    if foreign:
        return f"Rank {rank} ends with the part of {listed(foreign, 'rank')} in {what}."
    return f"Rank {rank} ends without the part of {listed(missing, 'rank')} in {what}."


def _check_races(where: str, messages: Sequence[Send]) -> None:
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


def _check_ports(where: str, messages: Sequence[Send]) -> None:
    for end, verb in (("src", "sends"), ("dst", "receives")):
        used = set()
        for send in messages:
            rank = getattr(send, end)
            if rank in used:
                raise Fault(f"{where}: rank {rank} {verb} two messages, and may {verb[:-1]} one.")
            used.add(rank)
