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
from minidist.schedule.program import Post, Program

TAG = 0x6D64  # keeps our messages apart from those that the caller sends in the same group
Message = tuple[torch.Tensor, int]  # bytes, peer
Both = tuple[torch.Tensor, torch.Tensor]  # elements, and their bytes: these go on any backend
_Memory = Mapping[int, Both]  # chunk → the tensor that it lies in


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
    """Run this rank's program on `tensor`, in place, and note each message that it sends in `log`.

    Args:
        tensor: 1-D, contiguous, of one length and dtype on all ranks, on the group's device. Or
            such a tensor for each chunk that this rank sends or receives, of any length.
        reduce: called as reduce(mine, theirs) where the schedule reduces.

    Raises CommunicationError, naming this rank, the step and the peers. The group must be made anew
    after it: late messages may still be on their way.
    """
    flight = _Flight(prog, tensor, reduce, group)
    loads = flight.loads
    try:
        for turn, load in enumerate(loads):
            while len(flight.tasks) == flight.window or (load.post.alone and flight.tasks):
                flight.land()
            flight.receive(load)
            flight.send(load)
            if turn + 1 < len(loads) and loads[turn + 1].post.early:
                flight.receive(loads[turn + 1])
            if log is not None:
                log.extend(
                    Sent(load.post.step, prog.rank, peer, chunk, (high - low) * flight.itemsize)
                    for peer, low, high, chunk, _ in load.post.sends
                )
        while flight.tasks:
            flight.land()
    except RuntimeError as error:
        if flight.at is None:
            raise
        _kept.inboxes = None  # a late message may still be written there
        raise flight.failure(flight.at, error) from error


class _Load:
    """A post with its places in memory; and its handles, when it is on its way."""

    def __init__(self, post: Post, memory: _Memory, inbox: torch.Tensor) -> None:
        self.post, size = post, inbox.element_size()
        self.incoming: list[Message] = []
        self.arriving: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # mine, theirs, whose
        for peer, low, high, chunk, reduce in post.receives:
            elements, wire = memory[chunk]
            if reduce:
                theirs = inbox[: high - low]
                self.arriving.append((elements[low:high], theirs, peer))
                self.incoming.append((theirs.view(torch.uint8), peer))
            else:
                self.incoming.append((wire[low * size : high * size], peer))
        self.outgoing: list[Message] = [
            (memory[chunk][1][low * size : high * size], peer)
            for peer, low, high, chunk, _ in post.sends
        ]
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
        self.prog, self.reduce, self.group = prog, reduce, group
        self.members = members(group)
        self.tasks: deque[_Load] = deque()
        self.at: Post | None = None  # whose messages we post or wait for; None while reducing
        if isinstance(tensor, torch.Tensor):
            like, both = tensor, (tensor, tensor.view(torch.uint8))
            memory = dict.fromkeys(range(prog.chunks), both)
            size: int | tuple[tuple[int, int], ...] = len(like)
        else:
            like = next(iter(tensor.values()), torch.empty(0))
            memory = {chunk: (each, each.view(torch.uint8)) for chunk, each in tensor.items()}
            size = tuple((chunk, len(each)) for chunk, each in tensor.items())
        layout = plan.lay_out(prog, size, like.element_size(), plan.MAX_MESSAGE)
        self.window, self.on_gpu, self.itemsize = layout.window, like.is_cuda, like.element_size()
        rows = _inboxes(like, layout.window + 1, layout.inbox)
        self.loads = [  # [Note: views first]
            _Load(post, memory, rows[turn % len(rows)]) for turn, post in enumerate(layout.posts)
        ]

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
        if not self.on_gpu:  # [Note: late handles]
            for wire, _ in load.incoming + load.outgoing:
                wire.set_()  # type: ignore[call-overload]
            _late[self.members] = before + after

    def failure(self, post: Post, error: RuntimeError) -> CommunicationError:
        """What the transport raised, with a word about where."""
        peers = [f"to rank {global_rank(each.peer, self.group)}" for each in post.sends]
        peers += [f"from rank {global_rank(each.peer, self.group)}" for each in post.receives]
        return CommunicationError(
            f"rank {dist.get_rank()}: {self.prog.name}, step {post.step + 1} of "
            f"{len(self.prog.steps)}: a message {' or '.join(peers)} failed: {error}"
        )


_late: WeakKeyDictionary[ProcessGroup, list[dist.Work]] = WeakKeyDictionary()


def _grouped(
    receives: list[Message], sends: list[Message], group: ProcessGroup | None
) -> list[dist.Work]:
    """Post receives and sends in one group, or with NCCL they can deadlock; what to wait for."""
    ops = [dist.P2POp(dist.irecv, wire, group=group, group_peer=peer) for wire, peer in receives]
    ops += [dist.P2POp(dist.isend, wire, group=group, group_peer=peer) for wire, peer in sends]
    return dist.batch_isend_irecv(ops) if ops else []


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
