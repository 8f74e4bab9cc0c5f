"""Run a schedule between real ranks, over torch.distributed's point-to-point messages.

A rank posts the receives and sends of a step together, so that no rank waits for another to receive
first; then it waits for them and reduces what came in.

[Note: letting go late] A message that has just come in is still in the hands of Gloo's own thread,
which woke us before it was done. Freeing its handle at once means waiting for that thread, and so
for the scheduler: 2 ranks on 2 cores took 4 ms for 1 MiB instead of 1.2. So a group's last handles
are kept until its next ones have landed, be that in the next call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from minidist.plan import Post, Program, program
from minidist.storage import Parts, Whole, forget_inboxes, inboxes

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
    tensor: torch.Tensor | Mapping[int, torch.Tensor],
    reduce: Reduce,
    group: dist.ProcessGroup | None = None,
    log: list[Sent] | None = None,
) -> None:
    """Run this rank's program on `tensor`, in place.

    Args:
        prog: from `program`, for this rank of `group`.
        tensor: 1-D, contiguous, of one length and dtype on all ranks, on the group's
            device. Or such a tensor for each chunk that this rank sends or receives, of
            any length, if the schedule's messages are single chunks.
        reduce: called as reduce(mine, theirs) on the slices where the schedule reduces.
        group: all its ranks must call this with their part of the same schedule.
        log: where to note each message that this rank sends.

    Raises:
        CommunicationError: naming this rank, the step and the peers. The group must be made anew
            after it: late messages may still be on their way.
    """
    flight = _Flight(prog, tensor, reduce, group)
    posts, window, inbox = flight.store.lay_out(prog)
    rows = inboxes(flight.store.like, window + 1, inbox)
    ahead: _Coming | None = None
    for turn, post in enumerate(posts):
        while len(flight.tasks) == window or (post.alone and flight.tasks):
            flight.land()
        flight.send(ahead or flight.receive(post, rows[turn % (window + 1)]))
        ahead = None
        if turn + 1 < len(posts) and posts[turn + 1].early:
            ahead = flight.receive(posts[turn + 1], rows[(turn + 1) % (window + 1)])
        if log is not None:
            size = flight.store.like.element_size()
            for peer, low, high, chunk, _ in post.sends:
                log.append(Sent(post.step, prog.rank, peer, chunk, (high - low) * size))
    while flight.tasks:
        flight.land()


_late: WeakKeyDictionary[dist.ProcessGroup, list[dist.Work]] = WeakKeyDictionary()


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
        self,
        prog: Program,
        tensor: torch.Tensor | Mapping[int, torch.Tensor],
        reduce: Reduce,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.prog, self.reduce, self.group = prog, reduce, group
        self.store = Whole(tensor) if isinstance(tensor, torch.Tensor) else Parts(tensor)
        self.on_gpu = self.store.like.is_cuda
        self.members = members(group)
        self.tasks: deque[_Task] = deque()

    def receive(self, post: Post, inbox: torch.Tensor) -> _Coming:
        """Post the receives of a post."""
        incoming, arriving = [], []
        for at in post.receives:
            if at.reduce:
                theirs = inbox[: at.high - at.low]
                arriving.append((self.store.elements(at), theirs))
                into = theirs.view(torch.uint8)
            else:
                into = self.store.wire(at)
            incoming.append((into, at.peer))
        with self._naming(post):
            on_cpu = incoming if not self.on_gpu else []
            posted = [self.members.recv([wire], peer, TAG) for wire, peer in on_cpu]
        return _Coming(post, incoming, arriving, posted)

    def send(self, coming: _Coming) -> None:
        """Post the sends of a post whose receives are posted."""
        post = coming.post
        outgoing = [(self.store.wire(at), at.peer) for at in post.sends]
        with self._naming(post):
            if self.on_gpu:
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
            forget_inboxes()
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
