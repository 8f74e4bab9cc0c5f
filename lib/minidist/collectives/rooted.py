"""The collectives of one tensor with a root, under torch.distributed's names."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import flat_view, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.collectives.tensor import Op
from minidist.schedule.algorithms import BROADCAST, REDUCE, segments


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "tree",
    check: bool | None = None,
) -> Work | None:
    """Give every rank of the group what is in rank `src`'s `tensor`.

    As `torch.distributed.broadcast`, in place, and right on non-contiguous tensors too.

    Args:
        tensor: any shape and dtype, alike on all ranks. Only read on the root, so there it may
            require grad or be expanded.
        src: the root's global rank, also in a sub-group; 0 if neither it nor `group_src` is given.
        group_src: the root's rank in the group, instead of `src`.
        algorithm: "tree" (binomial), "chain" (a pipeline from rank to rank, for large tensors), or
            "naive" (the root sends to one after another).
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.one_of(BROADCAST, algorithm)
        root = call.root("src", src, group_src)
        written = call.rank != root
        call.takes("tensor", tensor, written=written)
        options = {"segments": segments(tensor.nbytes)} if algorithm == "chain" else {}
        prog = call.program(BROADCAST[algorithm], root=root, **options)

        def run() -> None:
            with flat_view(tensor, group, written=written) as flat:
                call.execute(prog, flat)

        return run

    return collective("broadcast", group, async_op, check, prepare)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "tree",
    check: bool | None = None,
) -> Work | None:
    """Reduce `tensor` over the ranks of the group; rank `dst` gets the result, in place.

    As `torch.distributed.reduce`. On the other ranks `tensor` is left as it was (torch leaves
    anything there): a rank inside the tree adds in a copy.

    Args:
        tensor: as for `all_reduce`. Only read on ranks other than the root.
        dst: the root's global rank, also in a sub-group; 0 if neither it nor `group_dst` is given.
        op: as for `all_reduce`.
        group_dst: the root's rank in the group, instead of `dst`.
        algorithm: "tree" (binomial) or "naive" (one after another sends to the root).
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("op", op_name(op))
        call.one_of(REDUCE, algorithm)
        root = call.root("dst", dst, group_dst)
        written = call.rank == root
        call.takes("tensor", tensor, written=written)
        add, finish = reduction(op, tensor.dtype, call.ranks)
        prog = call.program(REDUCE[algorithm], root=root)
        inside = not written and any(step.receives for step in prog.steps)

        def run() -> None:
            with flat_view(tensor, group, written=written) as flat:
                sums = flat.clone() if inside else flat
                call.execute(prog, sums, add)
                if written:
                    finish(sums)

        return run

    return collective("reduce", group, async_op, check, prepare)
