"""Run a schedule between real ranks, over torch.distributed's point-to-point messages.

A rank posts the receives and sends of a step together, so that no rank waits for another to receive
first; then it waits for them and reduces what came in.

[Note: late handles] A message that has just come in is still in the hands of Gloo's own thread,
which woke us before it was done. Freeing its handle at once means waiting for that thread, and so
for the scheduler: 2 ranks on 2 cores took 4 ms for 1 MiB instead of 1.2. So a group's last handles
are kept until its next ones have landed, be that in the next call. A handle holds on to the tensor
it was made with; that is one of our views, which we point at no memory once the message is there.

[Note: views first] Between two steps other ranks run on this core, and megabytes go through its
caches: whatever code runs next is cold. So a call makes the views for all its steps in one go; a
step then only receives, sends, waits and reduces.

[Note: warm inboxes] Memory that is fresh from the system costs a page fault for every 4 KiB at the
first touch, which at 16 MiB took as long as the adding. So a thread keeps its inboxes: `WINDOW`
segments and one at most.

[Note: lower rank first] Where two ranks swap chunks and both reduce, they must get the same bits.
But the order of operands shows in the sign of a zero, in a NaN's payload and in a complex product.
So there both reduce the higher rank's operand into the lower rank's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import global_rank, members
from minidist.collectives.runtime.reduction import Reduce
from minidist.errors import CommunicationError
from minidist.schedule import program as plan
from minidist.schedule.program import Elements, Plan, Post, Program, program

__all__ = ["CommunicationError", "Program", "Sent", "execute", "program"]

TAG = 0x6D64  # keeps our messages apart from those that the caller sends in the same group
Message = tuple[torch.Tensor, int]  # bytes, peer


class Sent(NamedTuple):
    """One message as this rank handed it to the transport; ranks are ranks of the group."""

    step: int
    src: int
    dst: int
    chunk: int
    nbytes: int


@torch.inference_mode()  # or the views would keep their base: [Note: late handles]
def execute(
    prog: Program,
    tensor: torch.Tensor | Mapping[int, torch.Tensor],
    reduce: Reduce,
    group: ProcessGroup | None = None,
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
                log.extend(flight.sent(load.post))
        while flight.tasks:
            flight.land()
    except RuntimeError as error:
        if flight.at is None:
            raise
        _kept.inboxes = None  # a late message may still be written there
        raise flight.failure(flight.at, error) from error


class _Load:
    """A post with its places in memory; and its handles, when it is on its way."""

    def __init__(self, post: Post, memory: _OneTensor | _ChunkTensors, inbox: torch.Tensor) -> None:
        self.post = post
        self.incoming: list[Message] = []
        self.arriving: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # mine, theirs, whose
        for at in post.receives:
            if at.reduce:
                theirs = inbox[: at.high - at.low]
                self.arriving.append((memory.elements(at), theirs, at.peer))
                self.incoming.append((theirs.view(torch.uint8), at.peer))
            else:
                self.incoming.append((memory.wire(at), at.peer))
        self.outgoing: list[Message] = [(memory.wire(at), at.peer) for at in post.sends]
        self.received: list[dist.Work] | None = None  # None: the receives are not posted yet
        self.sent: list[dist.Work] = []


class _Flight:
    """Posts on their way; they land, and are reduced, in the order of posting."""

    def __init__(
        self,
        prog: Program,
        tensor: torch.Tensor | Mapping[int, torch.Tensor],
        reduce: Reduce,
        group: ProcessGroup | None,
    ) -> None:
        self.prog, self.tensor, self.reduce, self.group = prog, tensor, reduce, group
        self.members = members(group)
        self.tasks: deque[_Load] = deque()
        self.at: Post | None = None  # whose messages we post or wait for; None while reducing

    def loads(self) -> tuple[list[_Load], int]:
        """All posts, and how many may be on their way. See [Note: views first]."""
        memory: _OneTensor | _ChunkTensors
        if isinstance(self.tensor, torch.Tensor):
            memory = _OneTensor(self.tensor)
        else:
            memory = _ChunkTensors(self.tensor)
        posts, window, inbox = memory.lay_out(self.prog)
        rows = _inboxes(memory.like, window + 1, inbox)
        self.on_gpu, self.itemsize = memory.like.is_cuda, memory.like.element_size()
        return [_Load(p, memory, rows[i % (window + 1)]) for i, p in enumerate(posts)], window

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
        for mine, theirs, peer in load.arriving:
            if load.post.swaps and peer < self.prog.rank:  # [Note: lower rank first]
                self.reduce(theirs, mine)
                mine.copy_(theirs)
            else:
                self.reduce(mine, theirs)
        self.at = load.post
        for message in after:
            message.wait()
        if not self.on_gpu:
            self.keep_handles(load, before + after)

    def keep_handles(self, load: _Load, handles: list[dist.Work]) -> None:
        """Drop the handles of the post before, and keep these, without memory."""
        for wire, _ in load.incoming + load.outgoing:
            wire.set_()  # type: ignore[call-overload]
        _late[self.members] = handles  # [Note: late handles]

    def sent(self, post: Post) -> list[Sent]:
        """The messages of a post that this rank sends."""
        return [
            Sent(post.step, self.prog.rank, peer, chunk, (high - low) * self.itemsize)
            for peer, low, high, chunk, _ in post.sends
        ]

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


_late: WeakKeyDictionary[ProcessGroup, list[dist.Work]] = WeakKeyDictionary()


def _grouped(
    receives: list[Message], sends: list[Message], group: ProcessGroup | None
) -> list[dist.Work]:
    """Post receives and sends in one group, or with NCCL they can deadlock; what to wait for."""
    ops = [dist.P2POp(dist.irecv, wire, group=group, group_peer=peer) for wire, peer in receives]
    ops += [dist.P2POp(dist.isend, wire, group=group, group_peer=peer) for wire, peer in sends]
    return dist.batch_isend_irecv(ops) if ops else []


# ---- the memory that messages are read from and written to ----


class _OneTensor:
    """A tensor (1-D, contiguous) of which the schedule's chunks are slices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.like, self._tensor = tensor, tensor
        self._wire, self._size = tensor.view(torch.uint8), tensor.element_size()

    def lay_out(self, prog: Program) -> Plan:
        """The program laid out for this tensor."""
        return plan.lay_out(prog, len(self._tensor), self._size, plan.MAX_MESSAGE)

    def elements(self, at: Elements) -> torch.Tensor:
        """What is there, to be reduced into."""
        return self._tensor[at.low : at.high]

    def wire(self, at: Elements) -> torch.Tensor:
        """The same as bytes: messages are bytes, so any dtype goes, on any backend."""
        return self._wire[at.low * self._size : at.high * self._size]


class _ChunkTensors:
    """A tensor (1-D, contiguous) for each chunk that this rank has, all of one dtype and device."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.like = next(iter(tensors.values()), torch.empty(0))
        self._tensors = tensors

    def lay_out(self, prog: Program) -> Plan:
        """The program laid out for these tensors."""
        sizes = tuple((chunk, len(each)) for chunk, each in self._tensors.items())
        return plan.lay_out_chunks(prog, sizes, self.like.element_size(), plan.MAX_MESSAGE)

    def elements(self, at: Elements) -> torch.Tensor:
        """What is there, to be reduced into."""
        return self._tensors[at.chunk][at.low : at.high]

    def wire(self, at: Elements) -> torch.Tensor:
        """The same as bytes."""
        return self.elements(at).view(torch.uint8)


_kept = threading.local()


def _inboxes(like: torch.Tensor, rows: int, inbox: int) -> torch.Tensor:
    """`rows` of `inbox` elements like those of the tensor, see [Note: warm inboxes]."""
    size = rows * inbox * like.element_size()
    most = (plan.WINDOW + 1) * plan.MAX_MESSAGE
    if like.is_cuda or size > most:  # CUDA's allocator keeps its own memory
        return like.new_empty((rows, inbox))
    if getattr(_kept, "inboxes", None) is None or len(_kept.inboxes) < size:
        _kept.inboxes = torch.empty(size, dtype=torch.uint8)
    kept: torch.Tensor = _kept.inboxes
    return kept[:size].view(like.dtype).view(rows, inbox)
