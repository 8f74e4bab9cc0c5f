"""The collectives whose parts are tensors of their own, under torch.distributed's names.

Arguments are torch's: `op`, `group` and `async_op` as in `all_reduce`, which also says what is
raised; `src` and `dst` as in `broadcast`. The environment says whether ranks compare their calls.
"""

from collections.abc import Iterator, Sequence

import torch
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, collective
from minidist.collectives.checks.tensors import by_name, check_apart, check_like, split_sizes
from minidist.collectives.runtime.group import flat_view, flat_views
from minidist.collectives.runtime.reduction import Op, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.schedule import algorithms


@eager
def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Collect every rank's `tensor` in `tensor_list`, in the order of ranks, by the ring.

    Args:
        tensor_list: for each rank a tensor with as many elements as `tensor`; the r-th may be rank
            r's `tensor` itself.
        tensor: any shape and dtype, alike on all ranks; only read.
    """

    def steps(call: Call) -> Iterator[None]:
        call.takes("tensor", tensor, written=False)
        slots = call.takes_list("tensor_list", tensor_list, {"tensor": tensor}, written=True)
        yield
        with flat_views(slots, group, read=False) as flats:
            flats[call.rank].copy_(tensor.reshape(-1))
            call.execute(algorithms.ring_all_gather, dict(enumerate(flats)))

    return collective("all_gather", group, async_op, None, steps)


@eager
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the tensors of `input_list` over the ranks; rank r keeps the r-th, in `output`.

    By the ring. The inputs are left as they were.

    Args:
        output: any shape and dtype, alike on all ranks; it may be this rank's own input itself.
        input_list: for each rank a tensor with as many elements as `output`.
    """

    def steps(call: Call) -> Iterator[None]:
        call.agree_on("op", op_name(op))
        call.takes("output", output, written=True)
        given = call.takes_list("input_list", input_list, {"output": output}, written=False)
        reduce, finish = reduction(op, output.dtype, call.ranks)
        yield
        copies = [each.clone(memory_format=torch.contiguous_format) for each in given]
        with flat_views(copies, group, written=False) as sums:
            call.execute(algorithms.ring_reduce_scatter, dict(enumerate(sums)), reduce)
            finish(mine := sums[call.rank])
            output.copy_(mine.view(output.shape))

    return collective("reduce_scatter", group, async_op, None, steps)


@eager
def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in rank `dst`'s `gather_list`, in the order of ranks.

    All send to the root at once.

    Args:
        tensor: any shape and dtype, alike on all ranks; only read.
        gather_list: on the root a tensor for each rank, with as many elements as `tensor`; the
            root's own may be `tensor` itself. Not looked at elsewhere.
    """

    def steps(call: Call) -> Iterator[None]:
        root = call.root("dst", dst, group_dst, default=0)
        call.takes("tensor", tensor, written=False)
        slots: list[torch.Tensor] = []
        if call.rank == root:
            slots = call.takes_list("gather_list", gather_list, {"tensor": tensor}, written=True)
        yield
        with flat_views(slots or [tensor], group, read=not slots, written=bool(slots)) as flats:
            if slots:
                flats[root].copy_(tensor.reshape(-1))
            parts = dict(enumerate(flats)) if slots else {call.rank: flats[0]}
            call.execute(algorithms.direct_gather, parts, root=root)

    return collective("gather", group, async_op, None, steps)


@eager
def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Give rank r the r-th tensor of rank `src`'s `scatter_list`, in `tensor`.

    The root sends to all at once.

    Args:
        tensor: any shape and dtype, alike on all ranks; written.
        scatter_list: on the root a tensor for each rank, with as many elements as `tensor`, only
            read; the root's own may be `tensor` itself. Not looked at elsewhere.
    """

    def steps(call: Call) -> Iterator[None]:
        root = call.root("src", src, group_src, default=0)
        call.takes("tensor", tensor, written=True)
        given: list[torch.Tensor] = []
        if call.rank == root:
            given = call.takes_list("scatter_list", scatter_list, {"tensor": tensor}, written=False)
        yield
        with flat_views(given or [tensor], group, read=bool(given), written=not given) as flats:
            parts = dict(enumerate(flats)) if given else {call.rank: flats[0]}
            call.execute(algorithms.direct_scatter, parts, root=root)
            if given:
                tensor.copy_(flats[root].view(tensor.shape))

    return collective("scatter", group, async_op, None, steps)


@eager
def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the d-th tensor of `input_tensor_list` to rank d; the s-th output comes from rank s.

    Args:
        output_tensor_list: a tensor for each rank, of one dtype; none shares memory with another
            one or with an input.
        input_tensor_list: a tensor for each rank, with as many elements as that rank wants from
            this one; only read.
    """

    def steps(call: Call) -> Iterator[None]:
        given = call.takes_list("input_tensor_list", input_tensor_list, written=False)
        slots = call.takes_list("output_tensor_list", output_tensor_list, written=True)
        call.takes("input_tensor_list[0]", given[0], written=False, any_shape=True)
        check_like("output_tensor_list[0]", slots[0], "input_tensor_list[0]", given[0], times=0)
        check_apart(by_name("output_tensor_list", slots), by_name("input_tensor_list", given))
        gives, wants = [each.numel() for each in given], [each.numel() for each in slots]
        yield
        call.match("input_tensor_list", gives, "output_tensor_list", wants)
        with (
            flat_views(given, group, written=False) as sent,
            flat_views(slots, group, read=False) as received,
        ):
            _exchange(call, received, sent)

    return collective("all_to_all", group, async_op, None, steps)


@eager
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the d-th block of `input` to rank d; the s-th block of `output` comes from rank s.

    Blocks are rows: cuts along dimension 0.

    Args:
        output: of one dtype on all ranks; shares no memory with `input`.
        input: at least one dimension; only read.
        output_split_sizes: rows that come from each rank; None or empty: equally many.
        input_split_sizes: rows for each rank; as many elements as that rank wants from this one.
    """

    def steps(call: Call) -> Iterator[None]:
        call.takes("input", input, written=False, any_shape=True)
        call.takes("output", output, written=True, any_shape=True)
        check_like("output", output, "input", input, times=0)
        check_apart({"output": output}, {"input": input})
        gives = split_sizes("input", input, input_split_sizes, call.ranks)
        wants = split_sizes("output", output, output_split_sizes, call.ranks)
        yield
        call.match("input (by input_split_sizes)", gives, "output (by output_split_sizes)", wants)
        with (
            flat_view(input, group, written=False) as sent,
            flat_view(output, group, read=False) as received,
        ):
            _exchange(call, torch.split(received, wants), torch.split(sent, gives))

    return collective("all_to_all_single", group, async_op, None, steps)


def _exchange(call: Call, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
    """Blocks from and for each rank, flat; the block from s to d is chunk s * N + d."""
    rank, ranks = call.rank, call.ranks
    received[rank].copy_(sent[rank])
    parts = {rank * ranks + dst: block for dst, block in enumerate(sent) if dst != rank}
    parts |= {src * ranks + rank: block for src, block in enumerate(received) if src != rank}
    call.execute(algorithms.pairwise_all_to_all, parts)


@eager
def ring_shift(
    tensor: torch.Tensor, by: int = 1, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Send `tensor` to the rank `by` places on, round the ring, and get the one from `by` before.

    In place. With torch.distributed it takes an `isend` and an `irecv`; there is no such call.

    Args:
        tensor: any shape and dtype, alike on all ranks.
        by: places to go on, the same on all ranks; negative is backwards.
    """

    def steps(call: Call) -> Iterator[None]:
        call.agree_on("by", by)
        call.takes("tensor", tensor, written=True)
        places = by % call.ranks
        yield
        if places:
            with flat_view(tensor, group) as flat:
                parts = {call.rank: flat.clone(), (call.rank - places) % call.ranks: flat}
                call.execute(algorithms.ring_shift, parts, by=places)

    return collective("ring_shift", group, async_op, None, steps)
