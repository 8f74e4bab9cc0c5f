"""The seam between wrappers and collectives: the few calls that DDP, ZeRO, FSDP and Muon make.

A wrapper is handed a `Comm` and calls nothing else. So the same wrapper runs over minidist's
schedules (`ours.py`), over the backend's own collectives (`native.py`), or over either with
something done `Around` each call, such as counting it (`counted.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.profiler.spans import COMMUNICATION
from minidist.profiler.timeline import Timed, note

Op = ReduceOp | ReduceOp.RedOpType


class Handle(Timed, Protocol):
    """A collective on its way; it may know when it ran, once it is done."""

    def wait(self) -> object:
        """Return when the result is in place, in the order of the device's current stream."""


Pending = Handle | None  # handle of an asynchronous call; None when the result is in place
Start = Callable[[bool], Pending]  # a call that still wants its `async_op`


class Comm(Protocol):
    """The collectives that a wrapper calls, between the ranks of a group.

    Every call is made by all of them, in the same order, with tensors alike in size and dtype.
    With `async_op` it returns a `Handle` at once; until its `wait()` the tensors are the
    collective's. Without, it returns None when the result is in place.
    """

    group: ProcessGroup | None  # None: the default group
    rank: int  # this one's number in the group
    ranks: int

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """Give every rank what is in `tensor` on the group's rank `group_src`, in place."""

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """Reduce `tensor` over the ranks, in place."""

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """Reduce `input`, N equal parts, over the ranks; rank r keeps the r-th in `output`."""

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """Collect every rank's `input` in `output`, N times as large, in the order of ranks."""

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        async_op: bool = False,
    ) -> Pending:
        """Send the d-th part of `input` to rank d; the s-th part of `output` comes from rank s.

        Both are 1-D; sizes, in elements, may differ from rank to rank.
        """


def check_comm(argument: str, comm: object) -> None:
    if not all(hasattr(comm, name) for name in ("all_gather", "reduce_scatter", "group")):
        kind = type(comm).__name__
        raise TypeError(f"{argument}: expected a Comm, such as Ours(), got {kind}")


def noted(what: str, handle: Pending) -> Handle:
    """Record an asynchronous call in the timeline under this name; return its handle."""
    assert handle is not None
    note(what, COMMUNICATION, handle)
    return handle


def broadcast_coalesced(tensors: Iterable[Tensor], comm: Comm, group_src: int = 0) -> None:
    """Write the tensors of the group's rank `group_src` into those of every other rank.

    They are alike on all ranks, but for strides, and travel in one message for each dtype and
    device. Autograd does not see that they are written: a second forward may broadcast a buffer
    that the backward of the first still holds, as BatchNorm's do, which does not read it there.
    """
    kinds: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
        comm.broadcast(flat, group_src)
        if comm.rank != group_src:
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.data.copy_(part.view(tensor.shape))


def on_some_rank(flags: Sequence[bool], device: torch.device, *comms: Comm) -> list[bool]:
    """Return which flags are true on some rank that the comms reach, one after the other.

    On a GPU the host waits for the answer only if it does not know it: if not all are true here.
    """
    pinned = device.type == "cuda"
    host = torch.tensor(flags, dtype=torch.uint8, device="cpu", pin_memory=pinned)
    table = host.to(device, non_blocking=True)
    for comm in comms:
        comm.all_reduce(table, ReduceOp.MAX)
    return [True] * len(flags) if all(flags) else [bool(flag) for flag in table.tolist()]


class Around:
    """A `Comm` that hands each call to another one; a subclass says what happens around it."""

    def __init__(self, comm: Comm) -> None:
        check_comm("comm", comm)
        self.group, self.rank, self.ranks = comm.group, comm.rank, comm.ranks
        self._comm = comm

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Make the call. `full`: an all-gather's output, or else what is reduced or sent."""
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        call = partial(self._comm.broadcast, tensor, group_src)
        return self.around("broadcast", tensor, call, async_op)

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        call = partial(self._comm.all_reduce, tensor, op)
        return self.around("all_reduce", tensor, call, async_op)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        call = partial(self._comm.reduce_scatter, output, input, op)
        return self.around("reduce_scatter", input, call, async_op)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        call = partial(self._comm.all_gather, output, input)
        return self.around("all_gather", output, call, async_op)

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        async_op: bool = False,
    ) -> Pending:
        call = partial(self._comm.all_to_all, output, input, output_sizes, input_sizes)
        return self.around("all_to_all", input, call, async_op)
