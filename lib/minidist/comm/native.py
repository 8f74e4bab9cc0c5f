"""The backend's own collectives behind the four calls that a wrapper makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.runtime.group import backends, check_group
from minidist.collectives.runtime.reduction import Op, op_name, reduction

# torch 2.13 has new names, and warns of the old ones
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Finish = Callable[[], object]


def place(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number in the group and the number of ranks; raise if it is not in it."""
    try:
        check_group(group)
    except (TypeError, ValueError) as error:
        raise type(error)(f"rank {dist.get_rank()}: {error}") from None
    return dist.get_rank(group), dist.get_world_size(group)


class NativeWork:
    """The backend's handle; what is left to do to the result is done by the first `wait()`."""

    span = None  # the backend does not tell when it started and ended

    def __init__(self, work: dist.Work, finish: Finish) -> None:
        self._work, self._finish, self._waited = work, finish, False

    def wait(self) -> bool:
        """Return True when the result is in place."""
        if not self._waited:  # once: Gloo's reduce-scatter puts its sum in place at each wait
            self._work.wait()
            self._finish()
            self._waited = True
        return True


class Native:
    """The backend's own collectives, as torch.distributed calls them.

    Tensors must be contiguous: on others Gloo is silently wrong. AVG is a sum that is then divided,
    integers toward zero, except over NCCL, which has it.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.ranks = place(group)

    def broadcast(
        self, tensor: Tensor, group_src: int = 0, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.broadcast`."""
        _contiguous(tensor=tensor)
        work = dist.broadcast(tensor, None, self.group, async_op, group_src)
        return _after(work)

    def all_reduce(
        self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.all_reduce`."""
        own, finish = self._reduction(op, tensor)
        _contiguous(tensor=tensor)
        return _after(dist.all_reduce(tensor, own, self.group, async_op), finish)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.reduce_scatter_tensor`."""
        own, finish = self._reduction(op, output)
        _contiguous(output=output, input=input)  # flat, for Gloo wants shapes that fit
        work = _reduce_scatter(output.view(-1), input.view(-1), own, self.group, async_op)
        return _after(work, finish)

    def all_gather(
        self, output: Tensor, input: Tensor, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.all_gather_into_tensor`."""
        _contiguous(output=output, input=input)
        return _after(_all_gather(output.view(-1), input.view(-1), self.group, async_op))

    def _reduction(self, op: Op, tensor: Tensor) -> tuple[Op, Finish]:
        """What to ask of the backend, and what is left to do to the result."""
        if op_name(op) == "SUM" and tensor.dtype == torch.bool:
            return ReduceOp.MAX, _nothing  # Gloo adds the bytes: True and True would be 2, no bool
        if op_name(op) != "AVG" or backends(self.group).get(tensor.device.type) == "nccl":
            return op, _nothing
        _, divide = reduction(op, tensor.dtype, self.ranks)
        return ReduceOp.SUM, partial(divide, tensor)


def _nothing() -> None:
    """There is nothing left to do to the result."""


def _after(work: dist.Work | None, finish: Finish = _nothing) -> NativeWork | None:
    """The handle of an asynchronous call; the backend returns None when it is done."""
    if work is not None:
        return NativeWork(work, finish)
    finish()
    return None


def _contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            where = f"rank {dist.get_rank()}: {name}"
            raise ValueError(f"{where}: expected a contiguous tensor; pass .contiguous()")
