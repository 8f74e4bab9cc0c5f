"""Every rank to every other, every rank to its neighbour, and waiting for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import by_name, check_apart, check_like, split_sizes
from minidist.collectives.runtime.group import flat_view, flat_views
from minidist.collectives.runtime.work import Work
from minidist.schedule import algorithms


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Send the d-th block of `input` to rank d; the s-th block of `output` comes from rank s.

    As `torch.distributed.all_to_all_single`, pairwise. Blocks are rows: cuts along dimension 0.

    Args:
        output: of one dtype on all ranks; shares no memory with `input`.
        input: at least one dimension; only read.
        output_split_sizes: rows that come from each rank; None or empty: equally many.
        input_split_sizes: rows for each rank; as many elements as that rank wants from this one.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.takes("input", input, written=False, any_shape=True)
        call.takes("output", output, written=True, any_shape=True)
        check_like("output", output, "input", input, times=0)
        check_apart({"output": output}, {"input": input})
        gives = split_sizes("input", input, input_split_sizes, call.ranks)
        wants = split_sizes("output", output, output_split_sizes, call.ranks)
        call.match("input (by input_split_sizes)", gives, "output (by output_split_sizes)", wants)

        def run() -> None:
            with (
                flat_view(input, group, written=False) as sent,
                flat_view(output, group) as received,
            ):
                _exchange(call, torch.split(received, wants), torch.split(sent, gives))

        return run

    return collective("all_to_all_single", group, async_op, check, prepare)


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Send the d-th tensor of `input_tensor_list` to rank d; the s-th output comes from rank s.

    As `torch.distributed.all_to_all`, pairwise.

    Args:
        output_tensor_list: a tensor for each rank, of one dtype; none shares memory with another
            one or with an input.
        input_tensor_list: a tensor for each rank, with as many elements as that rank wants from
            this one; only read.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        given = call.takes_list("input_tensor_list", input_tensor_list, written=False)
        call.takes(name := "input_tensor_list[0]", given[0], written=False, any_shape=True)
        slots = call.takes_list(
            "output_tensor_list", output_tensor_list, name, given[0], written=True, times=0
        )
        outputs = by_name("output_tensor_list", slots)
        check_apart(outputs, by_name("input_tensor_list", given))
        gives, wants = [each.numel() for each in given], [each.numel() for each in slots]
        call.match("input_tensor_list", gives, "output_tensor_list", wants)

        def run() -> None:
            with (
                flat_views(dict(enumerate(given)), group, written=False) as sent,
                flat_views(dict(enumerate(slots)), group, written=True) as received,
            ):
                _exchange(call, list(received.values()), list(sent.values()))

        return run

    return collective("all_to_all", group, async_op, check, prepare)


def _exchange(call: Call, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
    """Blocks from and for each rank, flat; the block from s to d is chunk s * N + d."""
    rank, ranks = call.rank, call.ranks
    received[rank].copy_(sent[rank])
    parts = {rank * ranks + dst: block for dst, block in enumerate(sent) if dst != rank}
    parts |= {src * ranks + rank: block for src, block in enumerate(received) if src != rank}
    call.execute(algorithms.pairwise_all_to_all, {}, parts)


def ring_shift(
    tensor: torch.Tensor,
    by: int = 1,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool | None = None,
) -> Work | None:
    """Send `tensor` to the rank `by` places on, round the ring, and get the one from `by` before.

    In place. With torch.distributed it takes an `isend` and an `irecv`; there is no such call.

    Args:
        tensor: any shape and dtype, alike on all ranks.
        by: places to go on, the same on all ranks; negative is backwards.
        group, async_op, check: as for `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("by", by)
        call.takes("tensor", tensor, written=True)
        places = by % call.ranks

        def run() -> None:
            if places:
                with flat_view(tensor, group) as flat:
                    parts = {call.rank: flat.clone(), (call.rank - places) % call.ranks: flat}
                    call.execute(algorithms.ring_shift, {"by": places}, parts)

        return run

    return collective("ring_shift", group, async_op, check, prepare)


def barrier(
    group: ProcessGroup | None = None, async_op: bool = False, *, check: bool | None = None
) -> Work | None:
    """Return when every rank of the group has called it.

    As `torch.distributed.barrier`, by an all-reduce of one byte. It waits at most for the group's
    time. The arguments are those of `all_reduce`, which also says what is raised.
    """

    def prepare(call: Call) -> Run:
        def run() -> None:
            token = torch.zeros(1, dtype=torch.uint8, device=call.device)
            call.execute(algorithms.recursive_doubling_all_reduce, {}, token, torch.Tensor.add_)
            token.cpu()  # on a GPU: wait for it

        return run

    return collective("barrier", group, async_op, check, prepare)
