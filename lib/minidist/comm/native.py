"""`Native`: a wrapper's calls, made by the backend's own collectives."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.runtime.group import check_group
from minidist.comm.comm import Op, Pending


class NativeWork:
    span = None  # the backend does not tell when it started and ended

    def __init__(self, work: dist.Work) -> None:
        self._work: dist.Work | None = work

    def wait(self) -> bool:
        if self._work:  # once: Gloo's reduce-scatter puts its sum in place at each wait
            self._work.wait()
            self._work = None
        return True


class Native:
    """The backend's own collectives, as torch.distributed calls them; Gloo's know no AVG.

    On GPUs train with these: NCCL runs a collective as one kernel, `Ours` as a batch of messages
    for each step of its schedule, which is there to be read and compared.

    Tensors must be contiguous: on others Gloo is silently wrong.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        check_group(group)
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        _check_contiguous(tensor=tensor)
        return _handle(dist.broadcast(tensor, None, self.group, async_op, group_src))

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        _check_contiguous(tensor=tensor)
        return _handle(dist.all_reduce(tensor, op, self.group, async_op))

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        _check_contiguous(output=output, input=input)  # flat, for Gloo wants shapes that fit
        return _handle(_reduce_scatter(output.view(-1), input.view(-1), op, self.group, async_op))

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        _check_contiguous(output=output, input=input)
        return _handle(_all_gather(output.view(-1), input.view(-1), self.group, async_op))

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        async_op: bool = False,
    ) -> Pending:
        _check_contiguous(output=output, input=input)
        sizes = list(output_sizes), list(input_sizes)
        return _handle(dist.all_to_all_single(output, input, *sizes, self.group, async_op))


# torch 2.13 has new names, and warns of the old ones
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _check_contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            where = f"rank {dist.get_rank()}: {name}"
            raise ValueError(f"{where}: expected a contiguous tensor; pass .contiguous()")


def _handle(work: dist.Work | None) -> NativeWork | None:
    return NativeWork(work) if work else None  # None: it is done
