"""Run a schedule between real ranks, over torch.distributed's point-to-point messages.

A rank posts the receives and sends of a step together, so that no rank waits for another to receive
first; then it waits for them and reduces what came in.

[Note: letting go late] A message that has just come in is still in the hands of Gloo's own thread,
which woke us before it was done. Freeing its handle at once means waiting for that thread, and so
for the scheduler: 2 ranks on 2 cores took 4 ms for 1 MiB instead of 1.2. So a group's last handles
are kept until its next ones have landed, be that in the next call.

[Note: warm inboxes] Memory that is fresh from the system costs a page fault for every 4 KiB at the
first touch, which at 16 MiB took as long as the adding. So a thread keeps its inboxes: `WINDOW`
pieces and one at most.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from minidist import plan
from minidist.plan import Post, Program, program

__all__ = ["CommunicationError", "Program", "Sent", "execute", "program"]

TAG = 0x6D64  # keeps our messages apart from those that the caller sends in the same group
Reduce = Callable[[torch.Tensor, torch.Tensor], object]  # reduce(mine, theirs) changes mine
Message = tuple[torch.Tensor, int]  # bytes, peer


class CommunicationError(RuntimeError):
    """A message could not be sent or received: a peer is gone, or nothing came in time."""


class Sent(NamedTuple):
    """One message as this rank handed it to the transport; ranks are ranks of the group."""

    step: int
    src: int
    dst: int
    chunk: int
    nbytes: int


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
        tensor: 1-D, contiguous, of one length and dtype on all ranks, on the group's
            device.
        reduce: called as reduce(mine, theirs) on the slices where the schedule reduces.
        group: all its ranks must call this with their part of the same schedule.
        log: where to note each message that this rank sends.

    Raises:
        CommunicationError: naming this rank, the step and the peers. The group must be made anew
            after it: late messages may still be on their way.
    """
    itemsize = tensor.element_size()
    posts, window, inbox = plan.lay_out(prog, len(tensor), itemsize, plan.PIECE)
    inboxes = _inboxes(tensor, window + 1, inbox)
    flight = _Flight(prog, tensor, reduce, group)
    ahead: _Coming | None = None
    for turn, post in enumerate(posts):
        while len(flight.tasks) == window or (post.alone and flight.tasks):
            flight.land()
        flight.send(ahead or flight.receive(post, inboxes[turn % (window + 1)]))
        ahead = None
        if turn + 1 < len(posts) and posts[turn + 1].early:
            ahead = flight.receive(posts[turn + 1], inboxes[(turn + 1) % (window + 1)])
        if log is not None:
            for peer, low, high, chunk, _ in post.sends:
                nbytes = (high - low) * itemsize
                log.append(Sent(post.step, prog.rank, peer, chunk, nbytes))
    while flight.tasks:
        flight.land()


_kept = threading.local()
_late: WeakKeyDictionary[dist.ProcessGroup, list[dist.Work]] = WeakKeyDictionary()


def _inboxes(tensor: torch.Tensor, rows: int, inbox: int) -> torch.Tensor:
    """`rows` of `inbox` elements like those of `tensor`, see [Note: warm inboxes]."""
    size = rows * inbox * tensor.element_size()
    most = (plan.WINDOW + 1) * plan.PIECE
    if tensor.is_cuda or size > most:  # CUDA's allocator keeps its own memory
        return tensor.new_empty((rows, inbox))
    if getattr(_kept, "room", None) is None or len(_kept.room) < size:
        _kept.room = torch.empty(size, dtype=torch.uint8)
    room: torch.Tensor = _kept.room
    return room[:size].view(tensor.dtype).view(rows, inbox)


class _Coming(NamedTuple):
    """A post whose receives are posted; on CUDA they wait for its sends, see `_grouped`."""

    post: Post
    incoming: list[Message]
    arriving: list[tuple[torch.Tensor, torch.Tensor]]  # (mine, theirs), to be reduced
    posted: list[dist.Work]


class _Task(NamedTuple):
    """A post on its way."""

    post: Post
    before: list[dist.Work]  # to wait for before reducing
    arriving: list[tuple[torch.Tensor, torch.Tensor]]  # (mine, theirs), to be reduced
    after: list[dist.Work]  # sends that may go on meanwhile


class _Flight:
    """Posts on their way; they land, and are reduced, in the order of posting."""

    def __init__(
        self, prog: Program, tensor: torch.Tensor, reduce: Reduce, group: dist.ProcessGroup | None
    ) -> None:
        self.prog, self.tensor, self.reduce, self.group = prog, tensor, reduce, group
        self.wire = tensor.view(torch.uint8)  # messages are bytes: any dtype, on any backend
        self.members = members(group)
        self.tasks: deque[_Task] = deque()

    def receive(self, post: Post, inbox: torch.Tensor) -> _Coming:
        """Post the receives of a post."""
        size = self.tensor.element_size()
        incoming, arriving = [], []
        for peer, low, high, _, reduces in post.receives:
            into = self.wire[low * size : high * size]
            if reduces:
                theirs = inbox[: high - low]
                arriving.append((self.tensor[low:high], theirs))
                into = theirs.view(torch.uint8)
            incoming.append((into, peer))
        with self._naming(post):
            on_cpu = incoming if not self.tensor.is_cuda else []
            posted = [self.members.recv([wire], peer, TAG) for wire, peer in on_cpu]
        return _Coming(post, incoming, arriving, posted)

    def send(self, coming: _Coming) -> None:
        """Post the sends of a post whose receives are posted."""
        size, post = self.tensor.element_size(), coming.post
        outgoing = [(self.wire[low * size : high * size], to) for to, low, high, _, _ in post.sends]
        with self._naming(post):
            if self.tensor.is_cuda:
                received, sent = _grouped(coming.incoming, outgoing, self.group), []
            else:
                received = coming.posted
                sent = [self.members.send([wire], peer, TAG) for wire, peer in outgoing]
        if post.swaps:  # what arrives is reduced into what leaves
            received, sent = received + sent, []
        self.tasks.append(_Task(post, received, coming.arriving, sent))

    def land(self) -> None:
        """Wait for the earliest post and reduce what it brought."""
        post, before, arriving, after = self.tasks.popleft()
        with self._naming(post):
            for message in before:
                message.wait()
        for mine, theirs in arriving:
            self.reduce(mine, theirs)
        with self._naming(post):
            for message in after:
                message.wait()
        _late[self.members] = before + after  # [Note: letting go late]

    @contextmanager
    def _naming(self, post: Post) -> Iterator[None]:
        """Raise what the transport raises as a CommunicationError that says where."""
        try:
            yield
        except RuntimeError as error:
            _kept.room = None  # a late message may still be written there
            raise self._failure(post, error) from error

    def _failure(self, post: Post, error: RuntimeError) -> CommunicationError:
        def rank(of_group: int) -> str:
            return f"rank {global_rank(of_group, self.group)}"

        peers = [f"to {rank(each.peer)}" for each in post.sends]
        peers += [f"from {rank(each.peer)}" for each in post.receives]
        step = f"step {post.step + 1} of {len(self.prog.parts)}"
        return CommunicationError(
            f"{rank(self.prog.rank)}: {self.prog.name}, {step}: a message "
            f"{' or '.join(peers)} failed: {error}"
        )


def global_rank(rank: int, group: dist.ProcessGroup | None) -> int:
    """What a rank of the group is called outside it, and in messages to the user."""
    return rank if group is None else dist.get_global_rank(group, rank)


def members(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group itself; the default group for None."""
    chosen = group or dist.group.WORLD
    assert chosen is not None  # get_rank has raised where there is no default group
    return chosen


def _grouped(
    receives: list[Message], sends: list[Message], group: dist.ProcessGroup | None
) -> list[dist.Work]:
    """Post receives and sends in one group, or with NCCL they can deadlock; what to wait for."""
    ops = [dist.P2POp(dist.irecv, wire, group=group, group_peer=peer) for wire, peer in receives]
    ops += [dist.P2POp(dist.isend, wire, group=group, group_peer=peer) for wire, peer in sends]
    return dist.batch_isend_irecv(ops) if ops else []
