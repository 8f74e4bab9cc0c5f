"""Run a schedule between real ranks, over torch.distributed's point-to-point messages.

Each rank keeps only its own part of the schedule, its *program*. In a step it posts its receives
and sends together, so that no rank waits for another to receive first; then it waits for them and
reduces what came in.

[Note: pieces in flight] A large message travels as several, of at most `PIECE` bytes, and at most
`WINDOW` of them are on their way at once. While piece 1 is still coming, piece 0 is reduced, and in
a schedule of single chunks it is already passed on in the next step: chunks, and pieces of a chunk,
never mix. What a reduction needs beside the tensor is `WINDOW` inboxes, whatever the tensor's size.

[Note: letting go late] A message that has just come in is still in the hands of Gloo's own thread,
which woke us before it was done. Freeing its handle at once means waiting for that thread, and with
more ranks than cores for the scheduler: 8 ranks on 2 cores took twice as long. So a handle is kept
until the next one has landed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from minidist.schedule import Schedule, Send, Step, bounds, spread

PIECE = 2 << 20  # bytes: smaller means more messages, larger spoils the cache and the overlap
WINDOW = 4

Reduce = Callable[[torch.Tensor, torch.Tensor], object]  # reduce(mine, theirs) changes mine
Message = tuple[Callable[..., dist.Work | None], torch.Tensor, int]  # isend or irecv, what, peer


class CommunicationError(RuntimeError):
    """A message could not be sent or received: a peer is gone, or nothing came in time."""


class Sent(NamedTuple):
    """One message as this rank handed it to the transport; ranks are ranks of the group."""

    step: int
    src: int
    dst: int
    chunk: int
    nbytes: int


class Part(NamedTuple):
    """What one rank does in one step; the first two fields are about *all* ranks' messages.

    `width`: chunks in the longest. `swaps`: whether some rank reduces into a chunk that it sends.
    """

    width: int
    swaps: bool
    sends: tuple[Send, ...]
    receives: tuple[Send, ...]

    def pieces(self, nbytes: int) -> int:
        """Cut messages into how many, the longest being of `nbytes`; alike on all ranks."""
        if self.swaps and self.width > 1:  # runs may overlap in part: a piece of the one must not
            return 1  # be reduced before a later piece of the other has left with the old value
        return max(1, -(-nbytes // PIECE))


@dataclass(frozen=True)
class Program:
    """One rank's part of a schedule."""

    name: str
    rank: int
    chunks: int
    parts: tuple[Part, ...]

    @property
    def single(self) -> bool:
        """Whether every message of every rank is a single chunk."""
        return all(part.width <= 1 for part in self.parts)


def program(schedule: Schedule, rank: int) -> Program:
    """Check the schedule and take out what `rank` has to do."""

    def part(step: Step) -> Part:
        width, swaps = int(step.width.max(initial=0)), _swaps(step, schedule.chunks)
        sends = tuple(send for send in step if send.src == rank)
        return Part(width, swaps, sends, tuple(send for send in step if send.dst == rank))

    return Program(schedule.name, rank, schedule.chunks, tuple(map(part, schedule.check())))


def execute(
    prog: Program,
    tensor: torch.Tensor,
    reduce: Reduce,
    group: dist.ProcessGroup | None = None,
    log: list[Sent] | None = None,
) -> None:
    """Run this rank's program on `tensor`, in place.

    Args:
        prog: from `program`, for this rank of `group`.
        tensor: 1-D and contiguous, of one length and dtype on all ranks, on the group's device.
        reduce: called as reduce(mine, theirs) on the slices where the schedule reduces.
        group: all its ranks must call this with their part of the same schedule.
        log: where to note each message that this rank sends.

    Raises:
        CommunicationError: naming this rank, the step and the peers.
    """
    edge: list[int] = bounds(len(tensor), prog.chunks).tolist()
    sizes = [part.width * edge[1] for part in prog.parts]
    itemsize = tensor.element_size()
    pieces = [p.pieces(s * itemsize) for p, s in zip(prog.parts, sizes, strict=True)]
    flight = _Flight(prog, tensor, reduce, group, min(WINDOW, max(pieces, default=1)), log)
    flight.make_inboxes(max((-(-s // p) for s, p in zip(sizes, pieces, strict=True)), default=0))
    for number, part in enumerate(prog.parts):
        for piece in range(pieces[number]):
            flight.post(number, part, edge, piece, pieces[number])
        if not prog.single:  # a piece of a run of chunks is not a piece of the next step's run
            flight.land()
    flight.land()


def _swaps(step: Step, chunks: int) -> bool:
    message, chunk = spread(step)
    reduced = (step.dst[message] * chunks + chunk)[step.reduce[message]]
    return bool(np.isin(reduced, step.src[message] * chunks + chunk).any())


class _Task(NamedTuple):
    """The messages of one piece of one step that are on their way."""

    step: int
    part: Part
    before: list[dist.Work]  # to wait for before reducing
    arriving: list[tuple[torch.Tensor, torch.Tensor]]  # (mine, theirs), to be reduced
    after: list[dist.Work]  # sends that may go on meanwhile


class _Flight:
    """At most `window` tasks on their way; they land, and are reduced, in the order of posting."""

    def __init__(
        self,
        prog: Program,
        tensor: torch.Tensor,
        reduce: Reduce,
        group: dist.ProcessGroup | None,
        window: int,
        log: list[Sent] | None,
    ) -> None:
        self.prog, self.tensor, self.reduce, self.group = prog, tensor, reduce, group
        self.wire = tensor.view(torch.uint8)  # messages are bytes: any dtype, on any backend
        self.tasks: deque[_Task] = deque()
        self.window, self.turn = window, 0
        self.landed: _Task | None = None
        self.log = log

    def make_inboxes(self, numel: int) -> None:
        reduces = any(send.reduce for part in self.prog.parts for send in part.receives)
        self.inboxes = self.tensor.new_empty((self.window, numel if reduces else 0))

    def post(self, number: int, part: Part, edge: list[int], piece: int, pieces: int) -> None:
        """Start one piece of one step, once there is room for it."""
        if len(self.tasks) == self.window:
            self._land_one()
        inbox = self.inboxes[self.turn]
        self.turn = (self.turn + 1) % self.window
        receives: list[Message] = []
        sends: list[Message] = []
        arriving = []
        for send in part.receives:
            low, high = _slice(edge, send, piece, pieces)
            if send.reduce:
                theirs = inbox[: high - low]
                arriving.append((self.tensor[low:high], theirs))
                receives.append((dist.irecv, theirs.view(torch.uint8), send.src))
            else:
                receives.append((dist.irecv, self._bytes(low, high), send.src))
        for send in part.sends:
            out = self._bytes(*_slice(edge, send, piece, pieces))
            sends.append((dist.isend, out, send.dst))
            if self.log is not None and len(out):
                self.log.append(Sent(number, self.prog.rank, send.dst, send.chunk, len(out)))
        try:
            incoming, outgoing = _start(receives, sends, self.group)
        except RuntimeError as error:
            raise self._failure(number, part, error) from error
        if part.swaps:  # what arrives is reduced into what leaves
            incoming, outgoing = incoming + outgoing, []
        self.tasks.append(_Task(number, part, incoming, arriving, outgoing))

    def land(self) -> None:
        """Wait for all tasks and reduce what they brought."""
        while self.tasks:
            self._land_one()

    def _land_one(self) -> None:
        task = self.tasks.popleft()
        self._wait(task, task.before)
        for mine, theirs in task.arriving:
            self.reduce(mine, theirs)
        self._wait(task, task.after)
        self.landed = task  # [Note: letting go late]

    def _wait(self, task: _Task, messages: list[dist.Work]) -> None:
        try:
            for message in messages:
                message.wait()
        except RuntimeError as error:
            raise self._failure(task.step, task.part, error) from error

    def _bytes(self, low: int, high: int) -> torch.Tensor:
        size = self.tensor.element_size()
        return self.wire[low * size : high * size]

    def _failure(self, number: int, part: Part, error: RuntimeError) -> CommunicationError:
        def rank(of_group: int) -> str:
            return f"rank {global_rank(of_group, self.group)}"

        peers = [f"to {rank(s.dst)}" for s in part.sends]
        peers += [f"from {rank(s.src)}" for s in part.receives]
        step = f"step {number + 1} of {len(self.prog.parts)}"
        return CommunicationError(
            f"{rank(self.prog.rank)}: {self.prog.name}, {step}: a message "
            f"{' or '.join(peers)} failed: {error}"
        )


def global_rank(rank: int, group: dist.ProcessGroup | None) -> int:
    """What a rank of the group is called outside it, and in messages to the user."""
    return rank if group is None else dist.get_global_rank(group, rank)


def _slice(edge: list[int], send: Send, piece: int, pieces: int) -> tuple[int, int]:
    low, high = edge[send.chunk], edge[send.chunk + send.width]
    if pieces == 1:
        return low, high
    cut = bounds(high - low, pieces)
    return low + int(cut[piece]), low + int(cut[piece + 1])


def _start(
    receives: list[Message], sends: list[Message], group: dist.ProcessGroup | None
) -> tuple[list[dist.Work], list[dist.Work]]:
    """Post receives and sends together; return what to wait for: for the receives, for the sends.

    NCCL needs them in one group, or they can deadlock; it then has one handle for all.
    """
    receives, sends = ([m for m in each if len(m[1])] for each in (receives, sends))
    messages = receives + sends
    ops = [dist.P2POp(op, wire, group=group, group_peer=peer) for op, wire, peer in messages]
    work = dist.batch_isend_irecv(ops) if ops else []
    split = len(receives) if len(work) == len(ops) else len(work)
    return work[:split], work[split:]
