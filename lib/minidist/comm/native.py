"""The backend's own collectives behind the four calls that a wrapper makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.runtime.group import backends, check_group
from minidist.collectives.runtime.reduction import Op, op_name, reduction

# torch 2.13 has new names, and warns of the old ones
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Start = Callable[..., Any]  # start(async_op=…)
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

    def __init__(self, start: Start, finish: Finish | None) -> None:
        self._finish, self._waited = finish, False
        work = start(async_op=True)
        assert work is not None  # None is for ranks outside the group
        self._work = work

    def wait(self) -> bool:
        """Return True when the result is in place."""
        if not self._waited:  # once: Gloo's reduce-scatter puts its sum in place at each wait
            self._work.wait()
            if self._finish:
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
        start = partial(dist.broadcast, tensor, group=self.group, group_src=group_src)
        return self._start(start, async_op)

    def all_reduce(
        self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.all_reduce`."""
        own, finish = self._reduction(op, tensor)
        _contiguous(tensor=tensor)
        start = partial(dist.all_reduce, tensor, own, self.group)
        return self._start(start, async_op, finish)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.reduce_scatter_tensor`."""
        own, finish = self._reduction(op, output)
        _contiguous(output=output, input=input)  # flat, for Gloo wants shapes that fit
        start = partial(_reduce_scatter, output.view(-1), input.view(-1), own, self.group)
        return self._start(start, async_op, finish)

    def all_gather(
        self, output: Tensor, input: Tensor, async_op: bool = False
    ) -> NativeWork | None:
        """As `torch.distributed.all_gather_into_tensor`."""
        _contiguous(output=output, input=input)
        start = partial(_all_gather, output.view(-1), input.view(-1), self.group)
        return self._start(start, async_op)

    def _reduction(self, op: Op, tensor: Tensor) -> tuple[Op, Finish | None]:
        """What to ask of the backend, and what is left to do to the result."""
        if op_name(op) == "SUM" and tensor.dtype == torch.bool:
            return ReduceOp.MAX, None  # Gloo adds the bytes: True and True would be 2, no bool
        if op_name(op) != "AVG" or backends(self.group).get(tensor.device.type) == "nccl":
            return op, None
        _, divide = reduction(op, tensor.dtype, self.ranks)
        return ReduceOp.SUM, partial(divide, tensor)

    def _start(
        self, start: Start, async_op: bool, finish: Finish | None = None
    ) -> NativeWork | None:
        if async_op:
            return NativeWork(start, finish)
        start()
        if finish:
            finish()
        return None


def _contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            where = f"rank {dist.get_rank()}: {name}"
            raise ValueError(f"{where}: expected a contiguous tensor; pass .contiguous()")
