"""The collectives with a root, under torch.distributed's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import by_name, check_apart, same_place
from minidist.collectives.runtime.flatten import flat_view, flat_views
from minidist.collectives.runtime.group import global_rank
from minidist.collectives.runtime.reduction import Op, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.schedule import algorithms
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
            root's own may be `tensor` itself. None elsewhere.
        dst: the root's global rank, also in a sub-group; 0 if neither it nor `group_dst` is given.
        group_dst: the root's rank in the group, instead of `dst`.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        root = call.root("dst", dst, group_dst)
        call.takes("tensor", tensor, written=False)
        slots = _list_of_root(call, "gather_list", gather_list, tensor, root, written=True)
        if slots:
            read = {} if same_place(slots[root], tensor) else {"tensor": tensor}
            check_apart(by_name("gather_list", slots), read)

        def run() -> None:
            parts = dict(enumerate(slots)) if slots else {call.rank: tensor}
            with flat_views(parts, group, written=bool(slots)) as flats:
                if slots:
                    flats[root].copy_(tensor.reshape(-1))
                call.execute(call.program(algorithms.direct_gather, root=root), flats)

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
            read; the root's own may be `tensor` itself. None elsewhere.
        src: the root's global rank, also in a sub-group; 0 if neither it nor `group_src` is given.
        group_src: the root's rank in the group, instead of `src`.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        root = call.root("src", src, group_src)
        call.takes("tensor", tensor, written=True)
        given = _list_of_root(call, "scatter_list", scatter_list, tensor, root, written=False)
        read = by_name("scatter_list", given)
        if given and same_place(given[root], tensor):
            del read[f"scatter_list[{root}]"]
        check_apart({"tensor": tensor}, read)

        def run() -> None:
            parts = dict(enumerate(given)) if given else {call.rank: tensor}
            with flat_views(parts, group, written=not given) as flats:
                call.execute(call.program(algorithms.direct_scatter, root=root), flats)
                if given:
                    tensor.copy_(flats[root].view(tensor.shape))

        return run

    return collective("scatter", group, async_op, check, prepare)


def _list_of_root(
    call: Call,
    argument: str,
    tensors: Sequence[torch.Tensor] | None,
    like: torch.Tensor,
    root: int,
    *,
    written: bool,
) -> list[torch.Tensor]:
    """The list that the root, and no other rank, must pass."""
    if call.rank == root:
        return call.takes_list(argument, tensors, {"tensor": like}, written=written)
    if tensors is not None and len(tensors):
        who = f"rank {global_rank(root, call.group)}"
        raise ValueError(f"{argument}: only the root, {who}, passes one; got {len(tensors)}")
    return []
