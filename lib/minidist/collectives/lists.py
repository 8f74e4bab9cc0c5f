"""The collectives of one tensor for each rank in a list, under torch.distributed's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import by_name, check_apart, same_place
from minidist.collectives.runtime.flatten import flat_views
from minidist.collectives.runtime.reduction import Op, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.schedule import algorithms


def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in `tensor_list`, in the order of ranks.

    As `torch.distributed.all_gather`, by the ring.

    Args:
        tensor_list: for each rank a tensor with as many elements as `tensor`; the r-th may be rank
            r's `tensor` itself.
        tensor: any shape and dtype, alike on all ranks; only read.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.takes("tensor", tensor, written=False)
        slots = call.takes_list("tensor_list", tensor_list, {"tensor": tensor}, written=True)
        read = {} if same_place(slots[call.rank], tensor) else {"tensor": tensor}
        check_apart(by_name("tensor_list", slots), read)

        def run() -> None:
            with flat_views(dict(enumerate(slots)), group, written=True) as flats:
                flats[call.rank].copy_(tensor.reshape(-1))
                call.execute(call.program(algorithms.ring_all_gather), flats)

        return run

    return collective("all_gather", group, async_op, check, prepare)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Reduce the tensors of `input_list` over the ranks; rank r keeps the r-th, in `output`.

    As `torch.distributed.reduce_scatter`, by the ring. The inputs are left as they were.

    Args:
        output: any shape and dtype, alike on all ranks; it may be this rank's own input itself.
        input_list: for each rank a tensor with as many elements as `output`.
        op, group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("op", op_name(op))
        call.takes("output", output, written=True)
        given = call.takes_list("input_list", input_list, {"output": output}, written=False)
        read = by_name("input_list", given)
        if same_place(given[call.rank], output):
            del read[f"input_list[{call.rank}]"]
        check_apart({"output": output}, read)
        reduce, finish = reduction(op, output.dtype, call.ranks)

        def run() -> None:
            copies = (t.clone(memory_format=torch.contiguous_format) for t in given)
            with flat_views(dict(enumerate(copies)), group, written=False) as sums:
                call.execute(call.program(algorithms.ring_reduce_scatter), sums, reduce)
                finish(sums[call.rank])
                output.copy_(sums[call.rank].view(output.shape))

        return run

    return collective("reduce_scatter", group, async_op, check, prepare)
