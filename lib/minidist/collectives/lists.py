"""The collectives of one tensor for each rank in a list, under torch.distributed's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.aliasing import check_apart, same_place
from minidist.collectives.checks.tensors import by_name, flat_view, flat_views, op_name, reduction
from minidist.collectives.runtime.executor import global_rank
from minidist.collectives.runtime.work import Work
from minidist.collectives.tensor import Op
from minidist.schedule import algorithms
from minidist.schedule.algorithms import GATHER, SCATTER


def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in `tensor_list`, in the order of ranks.

    As `torch.distributed.all_gather`, by the ring. Ranks may bring tensors of different sizes.

    Args:
        tensor_list: for each rank a tensor with as many elements as that rank's; the r-th may be
            rank r's `tensor` itself.
        tensor: any shape, one dtype on all ranks; only read.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.takes("tensor", tensor, written=False, any_shape=True)
        slots = call.takes_list("tensor_list", tensor_list, {"tensor": tensor}, written=True)
        read = {} if same_place(slots[call.rank], tensor) else {"tensor": tensor}
        check_apart(by_name("tensor_list", slots), read)
        sizes = [slot.numel() for slot in slots]
        call.match("tensor", [tensor.numel()] * call.ranks, "tensor_list", sizes)

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

    As `torch.distributed.reduce_scatter`, by the ring. The inputs are left as they were. Those for
    different ranks may have different sizes.

    Args:
        output: as many elements as the tensor for this rank in every rank's `input_list`; it may
            be this rank's own one itself.
        input_list: a tensor for each rank, all of one dtype.
        op, group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("op", op_name(op))
        call.takes("output", output, written=True, any_shape=True)
        given = call.takes_list("input_list", input_list, {"output": output}, written=False)
        read = by_name("input_list", given)
        if same_place(given[call.rank], output):
            del read[f"input_list[{call.rank}]"]
        check_apart({"output": output}, read)
        sizes = [each.numel() for each in given]
        call.match("input_list", sizes, "output", [output.numel()] * call.ranks)
        reduce, finish = reduction(op, output.dtype, call.ranks)

        def run() -> None:
            copies = (t.clone(memory_format=torch.contiguous_format) for t in given)
            with flat_views(dict(enumerate(copies)), group, written=False) as sums:
                call.execute(call.program(algorithms.ring_reduce_scatter), sums, reduce)
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
    algorithm: str = "direct",
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in rank `dst`'s `gather_list`, in the order of ranks.

    As `torch.distributed.gather`.

    Args:
        tensor: any shape and dtype, alike on all ranks; only read.
        gather_list: on the root a tensor for each rank, with as many elements as `tensor`; the
            root's own may be `tensor` itself. None elsewhere.
        dst: the root's global rank, also in a sub-group; 0 if neither it nor `group_dst` is given.
        group_dst: the root's rank in the group, instead of `dst`.
        algorithm: "direct" (all send to the root at once) or "tree" (binomial; every rank needs
            memory for the whole).
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.one_of(GATHER, algorithm)
        root = call.root("dst", dst, group_dst)
        call.takes("tensor", tensor, written=False)
        slots = _list_of_root(call, "gather_list", gather_list, tensor, root, written=True)
        if slots:
            read = {} if same_place(slots[root], tensor) else {"tensor": tensor}
            check_apart(by_name("gather_list", slots), read)

        def run() -> None:
            if algorithm == "tree":
                _gather_by_runs(call, tensor, slots, root)
                return
            parts = dict(enumerate(slots)) if slots else {call.rank: tensor}
            with flat_views(parts, group, written=bool(slots)) as flats:
                if slots:
                    flats[root].copy_(tensor.reshape(-1))
                call.execute(call.program(GATHER[algorithm], root=root), flats)

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
    algorithm: str = "direct",
    check: bool | None = None,
) -> Work | None:
    """Give rank r the r-th tensor of rank `src`'s `scatter_list`, in `tensor`.

    As `torch.distributed.scatter`.

    Args:
        tensor: any shape and dtype, alike on all ranks; written.
        scatter_list: on the root a tensor for each rank, with as many elements as `tensor`, only
            read; the root's own may be `tensor` itself. None elsewhere.
        src: the root's global rank, also in a sub-group; 0 if neither it nor `group_src` is given.
        group_src: the root's rank in the group, instead of `src`.
        algorithm: "direct" (the root sends to all at once) or "tree" (binomial; every rank needs
            memory for the whole).
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.one_of(SCATTER, algorithm)
        root = call.root("src", src, group_src)
        call.takes("tensor", tensor, written=True)
        given = _list_of_root(call, "scatter_list", scatter_list, tensor, root, written=False)
        read = by_name("scatter_list", given)
        if given and same_place(given[root], tensor):
            del read[f"scatter_list[{root}]"]
        check_apart({"tensor": tensor}, read)

        def run() -> None:
            if algorithm == "tree":
                _scatter_by_runs(call, tensor, given, root)
                return
            parts = dict(enumerate(given)) if given else {call.rank: tensor}
            with flat_views(parts, group, written=not given) as flats:
                call.execute(call.program(SCATTER[algorithm], root=root), flats)
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
        return call.takes_list(argument, tensors, {"tensor": like}, written=written, any_size=False)
    if tensors is not None and len(tensors):
        who = f"rank {global_rank(root, call.group)}"
        raise ValueError(f"{argument}: only the root, {who}, passes one; got {len(tensors)}")
    return []


def _gather_by_runs(call: Call, tensor: torch.Tensor, slots: list[torch.Tensor], root: int) -> None:
    """Ranks collect those of others and pass them on side by side: in one piece of memory."""
    whole = tensor.new_empty((call.ranks, tensor.numel()))
    with flat_view(whole, call.group) as flat:
        flat.view(whole.shape)[call.rank].copy_(tensor.reshape(-1))
        call.execute(call.program(algorithms.tree_gather, root=root), flat)
    for slot, row in zip(slots, whole, strict=bool(slots)):
        slot.copy_(row.view(slot.shape))


def _scatter_by_runs(
    call: Call, tensor: torch.Tensor, given: list[torch.Tensor], root: int
) -> None:
    whole = tensor.new_empty((call.ranks, tensor.numel()))
    for row, each in zip(whole, given, strict=bool(given)):
        row.copy_(each.reshape(-1))
    with flat_view(whole, call.group) as flat:
        call.execute(call.program(algorithms.tree_scatter, root=root), flat)
    tensor.copy_(whole[call.rank].view(tensor.shape))
