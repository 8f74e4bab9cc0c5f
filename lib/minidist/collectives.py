"""The collectives, under torch.distributed's names: each runs a schedule on the calling ranks.

Every call goes the same way: look at the arguments; unless switched off, make sure that all ranks
agree on them; run the schedule on a flat view of the tensor (a flat copy, where it is not
contiguous); put the result in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from minidist import agree, algorithms
from minidist.execute import CommunicationError, Sent, execute, members
from minidist.inputs import check_parts, check_tensor, flat_view, op_name, reduction, wire_device
from minidist.plan import Algorithm, Program, program_of
from minidist.work import Work, in_order

Op = ReduceOp | ReduceOp.RedOpType

ALL_REDUCE: dict[str, Algorithm] = {
    "naive": algorithms.naive_all_reduce,
    "ring": algorithms.ring_all_reduce,
    "tree": algorithms.tree_all_reduce,
}

_log: list[Sent] | None = None


@contextmanager
def record() -> Iterator[list[Sent]]:
    """Collectives called within it note every message that this rank sends in the list.

    The messages of the check between ranks are not among them.
    """
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


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
        op: SUM, AVG (the sum, then divided by the number of ranks; integers round toward zero),
            PRODUCT, MIN or MAX.
        group: the default group if None.
        async_op: return a `Work` at once; the tensor is ready, and errors are raised, at `wait()`.
        algorithm: "ring", "tree", "naive", or "native": the backend's own, which an asynchronous
            call must not mix with calls of torch.distributed in the same group.
        check: see that all ranks make the same call before anything is sent; alike on all ranks.
            None: if the environment has MINIDIST_CHECK=1, as it has under `minidist.launch`.

    Raises:
        TypeError, ValueError: this rank's own input is wrong; it names the rank and the argument.
        MismatchError: the ranks disagree, or another rank's input is wrong (only with `check`).
        CommunicationError: a peer is gone or did not answer in time.
    """

    def prepare(log: list[Sent] | None) -> Callable[[], None]:
        _named("tensor", check_tensor, tensor, group, written=True)
        reduce, finish = reduction(op, tensor.dtype, dist.get_world_size(group))
        known = [*ALL_REDUCE, "native"]
        if algorithm not in known:
            raise ValueError(f"algorithm must be one of {', '.join(known)}, got {algorithm!r}")

        def run() -> None:
            with flat_view(tensor, group) as flat:
                if algorithm == "native":
                    _native_all_reduce(flat, op, group)
                else:
                    execute(_program(ALL_REDUCE[algorithm], group), flat, reduce, group, log)
                finish(flat)

        return run

    call = {"the call": "all_reduce", "op": op_name(op), "algorithm": str(algorithm)}
    return _call(call, {"tensor": tensor}, group, async_op, check, prepare)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Reduce `input` over the ranks; rank r keeps the r-th of its N equal parts, in `output`.

    As `torch.distributed.reduce_scatter_tensor`, by the ring. `input` is left as it was.

    Args:
        output: numel of input / N elements, in any shape.
        input: N parts one after another, part r for rank r.
        op, group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(log: list[Sent] | None) -> Callable[[], None]:
        _named("input", check_tensor, input, group, written=False)
        _named("output", check_tensor, output, group, written=True)
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        _named("input and output", check_parts, input, output, ranks)
        reduce, finish = reduction(op, input.dtype, ranks)

        def run() -> None:
            sums = input.clone(memory_format=torch.contiguous_format)  # they grow in a copy
            with flat_view(sums, group) as flat:
                execute(_program(algorithms.ring_reduce_scatter, group), flat, reduce, group, log)
                mine = flat.view(ranks, -1)[rank] if len(flat) else flat
                finish(mine)
                output.copy_(mine.view(output.shape))

        return run

    call = {"the call": "reduce_scatter_tensor", "op": op_name(op)}
    return _call(call, {"input": input, "output": output}, group, async_op, check, prepare)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Collect every rank's `input_tensor` in `output_tensor`, in the order of ranks.

    As `torch.distributed.all_gather_into_tensor`, by the ring.

    Args:
        output_tensor: N times the elements of the input, in any shape.
        input_tensor: alike on all ranks.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(log: list[Sent] | None) -> Callable[[], None]:
        _named("input_tensor", check_tensor, input_tensor, group, written=False)
        _named("output_tensor", check_tensor, output_tensor, group, written=True)
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        _named("output_tensor and input_tensor", check_parts, output_tensor, input_tensor, ranks)

        def run() -> None:
            with flat_view(output_tensor, group) as flat:
                if len(flat):
                    flat.view(ranks, -1)[rank] = input_tensor.reshape(-1)
                overwrite = torch.Tensor.copy_  # never called: nothing is reduced
                execute(_program(algorithms.ring_all_gather, group), flat, overwrite, group, log)

        return run

    tensors = {"output_tensor": output_tensor, "input_tensor": input_tensor}
    call = {"the call": "all_gather_into_tensor"}
    return _call(call, tensors, group, async_op, check, prepare)


def _call(
    call: agree.Call,
    tensors: dict[str, torch.Tensor],
    group: ProcessGroup | None,
    async_op: bool,
    check: bool | None,
    prepare: Callable[[list[Sent] | None], Callable[[], None]],
) -> Work | None:
    """Prepare a collective, agree on it, run it: the way that every call goes."""
    name, rank = call["the call"], dist.get_rank()
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {rank}: {name}: group: this rank is not a member of it")
    checked = agree.wanted(check)
    problem: Exception | None = None
    run: Callable[[], None] | None = None
    try:
        run = prepare(_log)
        for argument, tensor in tensors.items() if checked else ():
            call |= {
                f"{argument}'s shape": str(tuple(tensor.shape)),
                f"{argument}'s dtype": str(tensor.dtype),
                f"{argument}'s device": tensor.device.type,
            }
    except (TypeError, ValueError, RuntimeError) as error:
        problem = error
    where = wire_device(group)

    def body() -> None:
        with torch.inference_mode():  # no gradients, and tensors made in this mode may be written
            if checked:
                agree.agree(call, problem, group, where)
            if problem is not None:
                raise type(problem)(f"rank {rank}: {name}: {problem}") from problem
            assert run is not None
            run()

    first = next(iter(tensors.values()))
    on = first.device if isinstance(first, torch.Tensor) else where
    return in_order(members(group), body, on, async_op)


def _named(argument: str, check: Callable[..., None], *args: object, **options: object) -> None:
    """Put the argument's name before what is wrong with it."""
    try:
        check(*args, **options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def _program(algorithm: Algorithm, group: ProcessGroup | None) -> Program:
    return program_of(algorithm, dist.get_world_size(group), dist.get_rank(group))


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
