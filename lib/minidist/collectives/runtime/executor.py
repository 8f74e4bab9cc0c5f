"""Run a schedule between real ranks, over torch.distributed's point-to-point messages.

A rank posts the receives and sends of a step together, so that no rank waits for another to receive
first; then it waits for them and reduces what came in.

[Note: letting go late] A message that has just come in is still in the hands of Gloo's own thread,
which woke us before it was done. Freeing its handle at once means waiting for that thread, and so
for the scheduler: 2 ranks on 2 cores took 4 ms for 1 MiB instead of 1.2. So a group's last handles
are kept until its next ones have landed, be that in the next call; or, since they hold on to their
tensors, until the end of a call that has none.

[Note: views first] Between two steps other ranks run on this core, and megabytes go through its
caches: whatever code runs next is cold. So a call makes the views for all its steps in one go; a
step then only receives, sends, waits and reduces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from minidist.collectives.runtime.buffers import Parts, Whole, forget_inboxes, inboxes
from minidist.errors import CommunicationError
from minidist.schedule.program import Post, Program, program

__all__ = ["CommunicationError", "Program", "Sent", "execute", "program"]

TAG = 0x6D64  # keeps our messages apart from those that the caller sends in the same group
Reduce = Callable[[torch.Tensor, torch.Tensor], object]  # reduce(mine, theirs) changes mine
Message = tuple[torch.Tensor, int]  # bytes, peer


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
    loads, window = flight.loads()
    try:
        for turn, load in enumerate(loads):
            while len(flight.tasks) == window or (load.post.alone and flight.tasks):
                flight.land()
            flight.receive(load)
            flight.send(load)
            if turn + 1 < len(loads) and loads[turn + 1].post.early:
                flight.receive(loads[turn + 1])
            if log is not None:
                size = flight.store.like.element_size()
                for peer, low, high, chunk, _ in load.post.sends:
                    log.append(Sent(load.post.step, prog.rank, peer, chunk, (high - low) * size))
        while flight.tasks:
            flight.land()
    except RuntimeError as error:
        if flight.at is None:
            raise
        forget_inboxes()
        raise flight.failure(flight.at, error) from error
    _late[flight.members] = flight.late


_late: WeakKeyDictionary[dist.ProcessGroup, list[dist.Work]] = WeakKeyDictionary()


@contextmanager
def letting_go(group: dist.ProcessGroup) -> Iterator[None]:
    """Make a call within it: at its end no handle is kept of the calls before."""
    before = _late.get(group)
    yield
    if before is not None and _late.get(group) is before:
        del _late[group]  # [Note: letting go late]


class _Load:
    """A post with its places in memory; and its handles, when it is on its way."""

    def __init__(self, post: Post, store: Whole | Parts, inbox: torch.Tensor) -> None:
        self.post = post
        self.incoming: list[Message] = []
        self.arriving: list[tuple[torch.Tensor, torch.Tensor]] = []  # (mine, theirs), to reduce
        for at in post.receives:
            if at.reduce:
                theirs = inbox[: at.high - at.low]
                self.arriving.append((store.elements(at), theirs))
                self.incoming.append((theirs.view(torch.uint8), at.peer))
            else:
                self.incoming.append((store.wire(at), at.peer))
        self.outgoing: list[Message] = [(store.wire(at), at.peer) for at in post.sends]
        self.received: list[dist.Work] | None = None  # None: the receives are not posted yet
        self.sent: list[dist.Work] = []


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
        self.tasks: deque[_Load] = deque()
        self.late: list[dist.Work] = []  # [Note: letting go late]
        self.at: Post | None = None  # whose messages we post or wait for; None while reducing

    def loads(self) -> tuple[list[_Load], int]:
        """All posts, and how many may be on their way. See [Note: views first]."""
        posts, window, inbox = self.store.lay_out(self.prog)
        rows = inboxes(self.store.like, window + 1, inbox)
        return [_Load(p, self.store, rows[i % (window + 1)]) for i, p in enumerate(posts)], window

    def receive(self, load: _Load) -> None:
        """Post the receives, if they are not; on CUDA they go with the sends, see `_grouped`."""
        if load.received is None and not self.on_gpu:
            self.at = load.post
            load.received = [self.members.recv([wire], peer, TAG) for wire, peer in load.incoming]

    def send(self, load: _Load) -> None:
        """Post the sends; the receives are posted."""
        self.at = load.post
        if self.on_gpu:
            load.received = _grouped(load.incoming, load.outgoing, self.group)
        else:
            load.sent = [self.members.send([wire], peer, TAG) for wire, peer in load.outgoing]
        self.tasks.append(load)

    def land(self) -> None:
        """Wait for the earliest post and reduce what it brought."""
        load = self.tasks.popleft()
        self.at = load.post
        before, after = load.received or [], load.sent
        if load.post.swaps:  # what arrives is reduced into what leaves
            before, after = before + after, []
        for message in before:
            message.wait()
        self.at = None
        for mine, theirs in load.arriving:
            self.reduce(mine, theirs)
        self.at = load.post
        for message in after:
            message.wait()
        self.late = before + after

    def failure(self, post: Post, error: RuntimeError) -> CommunicationError:
        """What the transport raised, with a word about where."""

        def rank(of_group: int) -> str:
            return f"rank {global_rank(of_group, self.group)}"

        peers = [f"to {rank(each.peer)}" for each in post.sends]
        peers += [f"from {rank(each.peer)}" for each in post.receives]
        step = f"step {post.step + 1} of {len(self.prog.steps)}"
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
