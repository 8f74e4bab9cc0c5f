"""The collectives of one tensor for each rank in a list, under torch.distributed's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import by_name, check_apart, except_own
from minidist.collectives.runtime.group import flat_views
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
        slots = call.takes_list("tensor_list", tensor_list, "tensor", tensor, written=True)
        read = except_own(slots[call.rank], {"tensor": tensor})
        check_apart(by_name("tensor_list", slots), read)

        def run() -> None:
            with flat_views(dict(enumerate(slots)), group, written=True) as flats:
                flats[call.rank].copy_(tensor.reshape(-1))
                call.execute(algorithms.ring_all_gather, {}, flats)

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
        given = call.takes_list("input_list", input_list, "output", output, written=False)
        check_apart({"output": output}, except_own(output, by_name("input_list", given)))
        reduce, finish = reduction(op, output.dtype, call.ranks)

        def run() -> None:
            copies = [t.clone(memory_format=torch.contiguous_format) for t in given]
            with flat_views(dict(enumerate(copies)), group, written=False) as sums:
                call.execute(algorithms.ring_reduce_scatter, {}, sums, reduce)
                finish(sums[call.rank])
                output.copy_(sums[call.rank].view(output.shape))

        return run

    return collective("reduce_scatter", group, async_op, check, prepare)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in rank `dst`'s `gather_list`, in the order of ranks.

    As `torch.distributed.gather`; all send to the root at once.

    Args:
        tensor: any shape and dtype, alike on all ranks; only read.
        gather_list: on the root a tensor for each rank, with as many elements as `tensor`; the
            root's own may be `tensor` itself. Not looked at elsewhere.
        dst, group_dst: the root, as for `broadcast`.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        root = call.root("dst", dst, group_dst)
        call.takes("tensor", tensor, written=False)
        slots: list[torch.Tensor] = []
        if call.rank == root:
            slots = call.takes_list("gather_list", gather_list, "tensor", tensor, written=True)
            check_apart(by_name("gather_list", slots), except_own(slots[root], {"tensor": tensor}))

        def run() -> None:
            parts = dict(enumerate(slots)) or {call.rank: tensor}
            with flat_views(parts, group, written=bool(slots)) as flats:
                if slots:
                    flats[root].copy_(tensor.reshape(-1))
                call.execute(algorithms.direct_gather, {"root": root}, flats)

        return run

    return collective("gather", group, async_op, check, prepare)


def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    check: bool | None = None,
) -> Work | None:
    """Give rank r the r-th tensor of rank `src`'s `scatter_list`, in `tensor`.

    As `torch.distributed.scatter`; the root sends to all at once.

    Args:
        tensor: any shape and dtype, alike on all ranks; written.
        scatter_list: on the root a tensor for each rank, with as many elements as `tensor`, only
            read; the root's own may be `tensor` itself. Not looked at elsewhere.
        src, group_src: the root, as for `broadcast`.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        root = call.root("src", src, group_src)
        call.takes("tensor", tensor, written=True)
        given: list[torch.Tensor] = []
        if call.rank == root:
            given = call.takes_list("scatter_list", scatter_list, "tensor", tensor, written=False)
            check_apart({"tensor": tensor}, except_own(tensor, by_name("scatter_list", given)))

        def run() -> None:
            parts = dict(enumerate(given)) or {call.rank: tensor}
            with flat_views(parts, group, written=not given) as flats:
                call.execute(algorithms.direct_scatter, {"root": root}, flats)
                if given:
                    tensor.copy_(flats[root].view(tensor.shape))

        return run

    return collective("scatter", group, async_op, check, prepare)
