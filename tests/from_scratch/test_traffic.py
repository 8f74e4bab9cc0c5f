"""What from_scratch sends in a step: every call, and all bytes."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from from_scratch import fsdp
from minidist import Counted, Ours, launch
from minidist.comm.comm import CountedCall
from tests.from_scratch.ways import FROM_SCRATCH, MODELS, ROWS, blocks, groups

Calls = list[CountedCall]


def step(way: str) -> tuple[Calls, int]:
    """The calls of this rank's second step, and the bytes of its messages."""
    build, loss = MODELS["nested"]
    torch.manual_seed(0)
    comm = Counted(Ours(algorithm="ring"))
    wrapped = FROM_SCRATCH[way](build(), comm)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for number in range(2):
        comm.clear()
        loss(
            wrapped.model, number, slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
        ).backward()
        wrapped.synchronize()
        wrapped.optimizer.step()
        wrapped.optimizer.zero_grad()
    return comm.calls, comm.bytes_sent


def padded(parameters: list[nn.Parameter], ranks: int) -> int:
    """Bytes of a buffer of these parameters in equal shards."""
    numel = sum(parameter.numel() for parameter in parameters)
    return -(-numel // ranks) * ranks * parameters[0].element_size()


def check(ranks: int, way: str, right: Callable[[Calls], bool], bytes_of_all: int) -> None:
    found = launch(step, ranks, way)
    for calls, _ in found:
        assert right(calls), calls
    assert sum(sent for _, sent in found) == bytes_of_all


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(ranks: int) -> None:
    sizes = [parameter.nbytes for parameter in MODELS["nested"][0]().parameters()]
    least = 2 * (ranks - 1) * sum(sizes)
    each = [CountedCall("all_reduce", size) for size in sizes]
    check(ranks, "per parameter", lambda calls: calls == each, least)
    check(ranks, "flat", lambda calls: calls == [CountedCall("all_reduce", sum(sizes))], least)
    for way in ("bucketed", "overlapped"):
        check(ranks, way, lambda calls: 1 < len(calls) < len(sizes), least)


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero(ranks: int) -> None:
    net = MODELS["nested"][0]()
    shares = [padded(list(group["params"]), ranks) for group in groups(net)]
    names = ["reduce_scatter"] * 2 + ["all_gather"] * 2
    want = [CountedCall(name, size) for name, size in zip(names, shares * 2, strict=True)]
    check(ranks, "ZeRO-1", lambda calls: calls == want, 2 * (ranks - 1) * sum(shares))
    whole = padded(list(net.parameters()), ranks)
    both = [CountedCall(name, whole) for name in ("all_gather", "reduce_scatter")]
    check(ranks, "ZeRO-3", lambda calls: calls == both, 2 * (ranks - 1) * whole)


def units() -> list[int]:
    net = MODELS["nested"][0]()
    model = fsdp.FSDP(net, blocks(net), Ours())
    return [unit.buffer.nbytes for unit in model.units]


@pytest.mark.parametrize("way", ["FSDP", "FSDP, prefetch"])
def test_fsdp(way: str) -> None:
    sizes = launch(units, 3)[0]
    assert len(sizes) == 4

    def right(calls: Calls) -> bool:
        gathered = sorted(call.nbytes for call in calls if call.name == "all_gather")
        reduced = sorted(call.nbytes for call in calls if call.name == "reduce_scatter")
        return gathered == sorted(sizes * 2) and reduced == sorted(sizes)

    check(3, way, right, 3 * 2 * sum(sizes))
