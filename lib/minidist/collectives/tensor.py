"""The collectives that move one tensor, under torch.distributed's names.

Each runs a schedule on a flat view of the tensor (a flat copy, where it is not contiguous) and puts
the result in place.
"""

from __future__ import annotations

import os
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, Run, collective, named
from minidist.collectives.checks.tensors import check_apart, check_parts, is_slot
from minidist.collectives.runtime.flatten import flat_copy, flat_device, flat_view
from minidist.collectives.runtime.reduction import Op, op_name, reduction
from minidist.collectives.runtime.work import Work
from minidist.collectives.shared_memory.collectives import (
    shared_all_gather,
    shared_all_reduce,
    shared_reduce_scatter,
)
from minidist.collectives.tuner import CHOSEN, meets_first, settle
from minidist.errors import CommunicationError
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, segments


def all_reduce(
    tensor: torch.Tensor,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    algorithm: str = "ring",
    local_ranks: int | None = None,
    check: bool | None = None,
) -> Work | None:
    """Reduce `tensor` over the ranks of the group; every rank gets the same result, bit for bit.

    As `torch.distributed.all_reduce`, in place, and right on non-contiguous tensors too.

    Args:
        tensor: any shape, of any dtype that torch can reduce by `op`; alike on all ranks.
        op: SUM, AVG (the sum, then divided by the number of ranks; integers round toward zero),
            PRODUCT, MIN or MAX.
        group: the default group if None.
        async_op: return a `Work` at once; the tensor is ready, and errors are raised, at `wait()`.
        algorithm: "ring", "tree", "naive", "recursive_doubling", "halving_doubling", "double_tree"
            or "hierarchical"; "shared_memory", between ranks of one host; "auto", the one that
            `explain` would choose; or "native": the backend's own, which an asynchronous call must
            not mix with calls of torch.distributed in the same group. Over NCCL no asynchronous
            call may, whatever its algorithm, until `wait()` has returned.
        local_ranks: for "hierarchical" the ranks on a node; the group's ranks stand node by node.
            None: LOCAL_WORLD_SIZE of the environment, or one node.
        check: see that all ranks make the same call before anything is sent; alike on all ranks.
            None: if the environment has MINIDIST_CHECK=1, as it has under `minidist.launch`.

    Raises:
        TypeError, ValueError: this rank's own input is wrong; it names the rank and the argument.
        MismatchError: the ranks disagree, or another rank's input is wrong (only with `check`).
        CommunicationError: a peer is gone or did not answer in time. Over NCCL, which does not
            hold the host up, that shows where the host next waits for the GPU.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("op", op_name(op))
        call.one_of([*ALL_REDUCE, *CHOSEN, "native"], algorithm)
        call.takes("tensor", tensor, written=True)
        _in_memory(call, algorithm, "all_reduce", tensor, tensor.nbytes)
        reduce, finish = reduction(op, tensor.dtype, call.ranks)
        local = _local(call, local_ranks) if algorithm == "hierarchical" else 0

        def run() -> None:
            with flat_view(tensor, group) as flat:
                name = settle(algorithm, "all_reduce", flat.nbytes, flat.device, group)
                if name == "native":
                    _native_all_reduce(flat, op, group)
                elif name == "shared_memory":
                    shared_all_reduce(flat, reduce, group)
                else:
                    options = {"double_tree": {"segments": segments(flat.nbytes)}}
                    options["hierarchical"] = {"local": local}
                    prog = call.program(ALL_REDUCE[name], **options.get(name, {}))
                    call.execute(prog, flat, reduce)
                finish(flat)

        return run

    return collective("all_reduce", group, async_op, check, prepare)


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

    As `torch.distributed.reduce_scatter_tensor`. `input` is left as it was.

    Args:
        output: numel of input / N elements, in any shape. It may be this rank's part of `input`
            itself, but share no other memory with it.
        input: N parts one after another, part r for rank r.
        algorithm: "ring", "halving" (recursive), "direct" (pairwise), "shared_memory" or "auto".
        op, group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("op", op_name(op))
        call.one_of([*REDUCE_SCATTER, *CHOSEN], algorithm)
        call.takes("input", input, written=False)
        call.takes("output", output, written=True)
        named("input and output", check_parts, input, output, call.ranks)
        if not is_slot(output, input, call.rank):
            check_apart({"output": output}, {"input": input})
        _in_memory(call, algorithm, "reduce_scatter", input, input.nbytes)
        reduce, finish = reduction(op, input.dtype, call.ranks)

        def run() -> None:
            device = flat_device(input, group)
            name = settle(algorithm, "reduce_scatter", input.nbytes, device, group)
            if name == "shared_memory":
                with flat_view(output, group) as mine:
                    shared_reduce_scatter(mine, flat_copy(input, mine.device), reduce, group)
                    finish(mine)
                return
            sums = input.clone(memory_format=torch.contiguous_format)  # they grow in a copy
            with flat_view(sums, group, written=False) as flat:
                call.execute(call.program(REDUCE_SCATTER[name]), flat, reduce)
                mine = flat.view(call.ranks, -1)[call.rank] if len(flat) else flat
                finish(mine)
                output.copy_(mine.view(output.shape))

        return run

    return collective("reduce_scatter_tensor", group, async_op, check, prepare)


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

    As `torch.distributed.all_gather_into_tensor`.

    Args:
        output_tensor: N times the elements of the input, in any shape.
        input_tensor: alike on all ranks. It may be this rank's part of the output itself, but share
            no other memory with it.
        algorithm: "ring", "doubling" (recursive), "shared_memory" or "auto".
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.one_of([*ALL_GATHER, *CHOSEN], algorithm)
        call.takes("output_tensor", output_tensor, written=True)
        call.takes("input_tensor", input_tensor, written=False)
        both = output_tensor, input_tensor
        named("output_tensor and input_tensor", check_parts, *both, call.ranks)
        if not is_slot(input_tensor, output_tensor, call.rank):
            check_apart({"output_tensor": output_tensor}, {"input_tensor": input_tensor})
        _in_memory(call, algorithm, "all_gather", input_tensor, output_tensor.nbytes)

        def run() -> None:
            with flat_view(output_tensor, group) as flat:
                name = settle(algorithm, "all_gather", flat.nbytes, flat.device, group)
                if name == "shared_memory":
                    shared_all_gather(flat, flat_copy(input_tensor, flat.device), group)
                    return
                if len(flat):
                    flat.view(call.ranks, -1)[call.rank] = input_tensor.reshape(-1)
                call.execute(call.program(ALL_GATHER[name]), flat)

        return run

    return collective("all_gather_into_tensor", group, async_op, check, prepare)


def _local(call: Call, local_ranks: int | None) -> int:
    """The ranks on a node, on which all must agree."""
    local = local_ranks
    if local is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", call.ranks))
    call.agree_on("local_ranks", local)
    if local < 1 or call.ranks % local:
        raise ValueError(f"local_ranks: {call.ranks} ranks cannot be split into nodes of {local}")
    return local


def _in_memory(
    call: Call, algorithm: str, collective: str, tensor: torch.Tensor, nbytes: int
) -> None:
    """See whether shared memory is possible, and whether the call is known to go through it."""
    device = flat_device(tensor, call.group)
    if algorithm == "shared_memory" and device.type != "cpu":
        raise ValueError(f"algorithm: shared_memory is for the CPU, but it is on {tensor.device}")
    call.meets_first = partial(meets_first, algorithm, collective, nbytes, device, call.group)


def _native_all_reduce(flat: torch.Tensor, op: Op, group: ProcessGroup | None) -> None:
    """Reduce by the backend's own; the average is left to the caller, as for every algorithm."""
    own = ReduceOp.SUM if op == ReduceOp.AVG else op
    if flat.dtype == torch.bool and own == ReduceOp.SUM:
        own = ReduceOp.MAX  # Gloo adds the bytes: True and True would be 2, no bool at all
    try:
        dist.all_reduce(flat, own, group)
    except (RuntimeError, ValueError) as error:
        raise CommunicationError(
            f"rank {dist.get_rank()}: the backend's own all_reduce of {flat.dtype} by "
            f"{op_name(op)} failed: {error}"
        ) from error


# torch 2.13 has renamed them.
reduce_scatter_single = reduce_scatter_tensor
all_gather_single = all_gather_into_tensor
