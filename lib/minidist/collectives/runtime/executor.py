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
from itertools import zip_longest
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import members
from minidist.collectives.runtime.reduction import Reduce
from minidist.errors import CommunicationError
from minidist.schedule import program as plan
from minidist.schedule.program import Post, Program

TAG = 0x6D64  # keeps our messages apart from those that the caller sends in the same group


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
    size: int | tuple[tuple[int, int], ...]
    if isinstance(tensor, torch.Tensor):
        like, size, memory = tensor, len(tensor), dict.fromkeys(range(prog.chunks), tensor)
    else:
        like, memory = next(iter(tensor.values()), torch.empty(0, device="cpu")), dict(tensor)
        size = tuple((chunk, len(each)) for chunk, each in memory.items())
    itemsize = like.element_size()
    most = plan.MAX_ON_GPU if like.is_cuda else plan.MAX_MESSAGE
    layout = plan.lay_out(prog, size, itemsize, most)
    rows = _inboxes(like, layout.window + 1, layout.inbox)
    loads = [  # [Note: views first]
        _Load(post, memory, rows[turn % len(rows)]) for turn, post in enumerate(layout.posts)
    ]
    flight = _Flight(prog, reduce, group, like.is_cuda)
    try:
        for load, following in zip_longest(loads, loads[1:]):
            while len(flight.loads) == layout.window or (load.post.alone and flight.loads):
                flight.land()
            flight.receive(load)
            flight.send(load)
            if following and following.post.early:
                flight.receive(following)
            if log is not None:
                log.extend(
                    Sent(load.post.step, prog.rank, peer, chunk, (high - low) * itemsize)
                    for peer, low, high, chunk, _ in load.post.sends
                )
        while flight.loads:
            flight.land()
    except RuntimeError as error:
        if flight.at is None or isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError):
            raise  # an error of a kernel, maybe the caller's own
        _kept.inboxes = None  # a late message may still be written there
        raise flight.failure(flight.at, error) from error


class _Load:
    """A post with its places in memory; and its handles, when it is on its way."""

    def __init__(self, post: Post, memory: Mapping[int, torch.Tensor], inbox: torch.Tensor) -> None:
        self.post = post
        self.incoming: list[tuple[torch.Tensor, int]] = []  # bytes, which go on any backend; peer
        self.arriving: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # mine, theirs, whose
        for peer, low, high, chunk, reduce in post.receives:
            place = mine = memory[chunk][low:high]
            if reduce:
                place = inbox[: high - low]
                self.arriving.append((mine, place, peer))
            self.incoming.append((place.view(torch.uint8), peer))
        self.outgoing = [
            (memory[chunk][low:high].view(torch.uint8), peer)
            for peer, low, high, chunk, _ in post.sends
        ]
        self.received, self.sent = list[dist.Work](), list[dist.Work]()  # empty: not posted yet


class _Flight:
    """Loads on their way; they land, and are reduced, in the order of posting."""

    def __init__(
        self, prog: Program, reduce: Reduce, group: ProcessGroup | None, on_gpu: bool
    ) -> None:
        self.prog, self.reduce, self.group, self.on_gpu = prog, reduce, group, on_gpu
        self.members = members(group)
        self.loads: deque[_Load] = deque()
        self.at: Post | None = None  # the one that we post or wait for; None while reducing

    def receive(self, load: _Load) -> None:
        if not (load.received or self.on_gpu):
            self.at = load.post
            load.received = [self.members.recv([wire], peer, TAG) for wire, peer in load.incoming]

    def send(self, load: _Load) -> None:
        self.at = load.post
        if self.on_gpu:  # all in one group, or with NCCL they can deadlock
            ops = [
                dist.P2POp(call, wire, group=self.group, group_peer=peer)
                for call, messages in ((dist.irecv, load.incoming), (dist.isend, load.outgoing))
                for wire, peer in messages
            ]
            load.received = dist.batch_isend_irecv(ops) if ops else []
        else:
            load.sent = [self.members.send([wire], peer, TAG) for wire, peer in load.outgoing]
        self.loads.append(load)

    def land(self) -> None:
        load = self.loads.popleft()
        self.at = load.post
        before, after = load.received, load.sent
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
        ranks = dist.get_process_group_ranks(self.group)  # users know them by their global numbers
        peers = [f"to rank {ranks[each.peer]}" for each in post.sends]
        peers += [f"from rank {ranks[each.peer]}" for each in post.receives]
        return CommunicationError(
            f"rank {dist.get_rank()}: {self.prog.name}, step {post.step + 1} of "
            f"{len(self.prog.steps)}: a message {' or '.join(peers)} failed: {error}"
        )


_late: WeakKeyDictionary[ProcessGroup, list[dist.Work]] = WeakKeyDictionary()
_kept = threading.local()


def _inboxes(like: torch.Tensor, rows: int, inbox: int) -> torch.Tensor:
    """`rows` of `inbox` elements like those of the tensor, see [Note: warm inboxes]."""
    size = rows * inbox * like.element_size()
    most = (plan.WINDOW + 1) * plan.MAX_MESSAGE
    if like.is_cuda or size > most:  # CUDA's allocator keeps its own memory
        return like.new_empty((rows, inbox))
    kept: torch.Tensor | None = getattr(_kept, "inboxes", None)
    if kept is None or len(kept) < size:
        kept = _kept.inboxes = torch.empty(size, dtype=torch.uint8, device="cpu")
    return kept[:size].view(like.dtype).view(rows, inbox)
