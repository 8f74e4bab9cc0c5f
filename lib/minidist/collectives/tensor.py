"""The collectives that move one tensor, under torch.distributed's names.

Each runs a schedule on a flat view of the tensor (a flat copy, where it is not contiguous) and puts
the result in place. All take `op`, `group`, `async_op` and `check` as `all_reduce` does, which also
says what is raised.
"""

import os
from collections.abc import Iterator

import torch
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, collective
from minidist.collectives.checks.tensors import check_apart, check_like, is_slot
from minidist.collectives.runtime.group import flat_device, flat_view
from minidist.collectives.runtime.reduction import Op, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.collectives.shared_memory import collectives as in_memory
from minidist.collectives.tuner import CHOSEN, TABLES, Choice
from minidist.schedule import algorithms
from minidist.schedule.program import program_of


@eager
def all_reduce(
    tensor: torch.Tensor,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    check: bool | None = None,
) -> Work | None:
    """Reduce `tensor` over the ranks of the group; every rank gets the same result, bit for bit.

    As `torch.distributed.all_reduce`, in place, and right on non-contiguous tensors too.

    Args:
        tensor: any shape, of any dtype that torch can reduce by `op`; alike on all ranks.
        op: SUM, AVG (the sum, then divided by the number of ranks; integers round toward zero,
            and have 32 bits or more), PRODUCT, MIN or MAX.
        group: the default group if None.
        async_op: return a `Work` at once; the tensor is ready, and errors are raised, at `wait()`.
        algorithm: "ring", "tree", "naive", "recursive_doubling", "halving_doubling", "double_tree"
            or "hierarchical" (LOCAL_WORLD_SIZE ranks of the group to a node, node by node);
            "shared_memory", between ranks of one host; or "auto", what `explain` would choose.
        check: see that all ranks make the same call before anything is sent; alike on all ranks.
            None: if the environment has MINIDIST_CHECK=1, as it has under `minidist.launch`.

    Raises:
        TypeError, ValueError: this rank's own input is wrong; it names the rank and the argument.
        MismatchError: the ranks disagree, or another rank's input is wrong (only with `check`).
        CommunicationError: a peer is gone or did not answer in time. Over NCCL, which does not
            hold the host up, that shows where the host next waits for the GPU.
    """

    def steps(call: Call) -> Iterator[None]:
        call.agree_on("op", op_name(op))
        call.takes("tensor", tensor, written=True)
        choice = _choice(call, "all_reduce", algorithm, tensor, tensor.nbytes)
        reduce, finish = reduction(op, tensor.dtype, call.ranks)
        options: dict[str, int] = {}
        if algorithm == "hierarchical":
            options["local"] = int(os.environ.get("LOCAL_WORLD_SIZE", call.ranks))
            call.agree_on("LOCAL_WORLD_SIZE", options["local"])
        yield
        with flat_view(tensor, group) as flat:
            name = choice.name()
            if name == "shared_memory":
                in_memory.shared_all_reduce(flat, reduce, group)
            else:
                if name == "double_tree":
                    options["segments"] = algorithms.segments(flat.nbytes)
                call.execute(algorithms.ALL_REDUCE[name], flat, reduce, **options)
            finish(flat)

    return collective("all_reduce", group, async_op, check, steps)


@eager
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    check: bool | None = None,
) -> Work | None:
    """Reduce `input` over the ranks; rank r keeps the r-th of its N equal parts, in `output`.

    `input` is left as it was.

    Args:
        output: numel of input / N elements, in any shape. It may be this rank's part of `input`
            itself, but share no other memory with it.
        input: N parts one after another, part r for rank r.
        algorithm: "ring", "halving" (recursive), "direct" (pairwise), "shared_memory" or "auto".
    """

    def steps(call: Call) -> Iterator[None]:
        call.agree_on("op", op_name(op))
        call.takes("input", input, written=False)
        call.takes("output", output, written=True)
        check_like("input", input, "output", output, call.ranks)
        if not is_slot(output, input, call.rank):
            check_apart({"output": output}, {"input": input})
        choice = _choice(call, "reduce_scatter", algorithm, input, input.nbytes)
        reduce, finish = reduction(op, input.dtype, call.ranks)
        yield
        name = choice.name()
        if name == "shared_memory":
            with (
                flat_view(output, group, read=False) as mine,
                flat_view(input, group, written=False) as parts,
            ):
                in_memory.shared_reduce_scatter(mine, parts, reduce, group)
                finish(mine)
            return
        sums = input.clone(memory_format=torch.contiguous_format)  # they grow in a copy
        with flat_view(sums, group, written=False) as flat:
            call.execute(algorithms.REDUCE_SCATTER[name], flat, reduce)
            mine = flat.tensor_split(call.ranks)[call.rank]
            finish(mine)
            output.copy_(mine.view(output.shape))

    return collective("reduce_scatter_tensor", group, async_op, check, steps)


@eager
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `input_tensor` in `output_tensor`, in the order of ranks.

    Args:
        output_tensor: N times the elements of the input, in any shape.
        input_tensor: alike on all ranks. It may be this rank's part of the output itself, but share
            no other memory with it.
        algorithm: "ring", "doubling" (recursive), "shared_memory" or "auto".
    """

    def steps(call: Call) -> Iterator[None]:
        call.takes("output_tensor", output_tensor, written=True)
        call.takes("input_tensor", input_tensor, written=False)
        check_like("output_tensor", output_tensor, "input_tensor", input_tensor, call.ranks)
        if not is_slot(input_tensor, output_tensor, call.rank):
            check_apart({"output_tensor": output_tensor}, {"input_tensor": input_tensor})
        choice = _choice(call, "all_gather", algorithm, input_tensor, output_tensor.nbytes)
        yield
        with flat_view(output_tensor, group, read=False) as flat:
            name = choice.name()
            if name == "shared_memory":
                with flat_view(input_tensor, group, written=False) as mine:
                    in_memory.shared_all_gather(flat, mine, group)
                return
            flat.tensor_split(call.ranks)[call.rank].copy_(input_tensor.reshape(-1))
            call.execute(algorithms.ALL_GATHER[name], flat)

    return collective("all_gather_into_tensor", group, async_op, check, steps)


@eager
def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    check: bool | None = None,
) -> Work | None:
    """Give every rank of the group what is in rank `src`'s `tensor`.

    In place, by a binomial tree.

    Args:
        tensor: any shape and dtype, alike on all ranks. Only read on the root, so there it may
            require grad or be expanded.
        src: the root's global rank, also in a sub-group.
        group_src: the root's rank in the group, instead of `src`.
    """

    def steps(call: Call) -> Iterator[None]:
        root = call.root("src", src, group_src)
        written = call.rank != root
        call.takes("tensor", tensor, written=written)
        yield
        with flat_view(tensor, group, read=not written, written=written) as flat:
            call.execute(algorithms.tree_broadcast, flat, root=root)

    return collective("broadcast", group, async_op, check, steps)


@eager
def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    check: bool | None = None,
) -> Work | None:
    """Reduce `tensor` over the ranks of the group; rank `dst` gets the result, in place.

    By a binomial tree. On the other ranks `tensor` is left as it was (torch leaves anything there):
    a rank inside the tree adds in a copy.

    Args:
        tensor: as for `all_reduce`. Only read on ranks other than the root.
        dst: the root's global rank, also in a sub-group.
        group_dst: the root's rank in the group, instead of `dst`.
    """

    def steps(call: Call) -> Iterator[None]:
        call.agree_on("op", op_name(op))
        root = call.root("dst", dst, group_dst)
        written = call.rank == root
        call.takes("tensor", tensor, written=written)
        add, finish = reduction(op, tensor.dtype, call.ranks)
        prog = program_of(algorithms.tree_reduce, call.ranks, call.rank, root=root)
        inside = not written and any(step.receives for step in prog.steps)
        yield
        with flat_view(tensor, group, written=written) as flat:
            sums = flat.clone() if inside else flat
            call.execute(algorithms.tree_reduce, sums, add, root=root)
            if written:
                finish(sums)

    return collective("reduce", group, async_op, check, steps)


@eager
def barrier(
    group: ProcessGroup | None = None, async_op: bool = False, *, check: bool | None = None
) -> Work | None:
    """Return when all ranks have called it, or raise when the group's time is over."""

    def steps(call: Call) -> Iterator[None]:
        yield
        token = torch.zeros(1, dtype=torch.uint8, device=call.device)
        call.execute(algorithms.recursive_doubling_all_reduce, token, torch.Tensor.add_)
        token.cpu()  # on a GPU: wait for it

    return collective("barrier", group, async_op, check, steps)


def _choice(
    call: Call, collective: str, algorithm: str, tensor: torch.Tensor, nbytes: int
) -> Choice:
    """Check the algorithm's name; return what chooses when all ranks have come to the call."""
    call.agree_on("algorithm", algorithm)
    known = [*TABLES[collective], *CHOSEN]
    if algorithm not in known:
        raise ValueError(f"algorithm must be one of {', '.join(known)}, got {algorithm!r}")
    device = flat_device(tensor.device, call.group)
    if algorithm == "shared_memory" and device.type != "cpu":
        raise ValueError(f"algorithm: shared_memory is for the CPU, but it is on {tensor.device}")
    call.choice = Choice(collective, algorithm, nbytes, device, call.group)
    return call.choice


# torch 2.13 has renamed them.
reduce_scatter_single = reduce_scatter_tensor
all_gather_single = all_gather_into_tensor
