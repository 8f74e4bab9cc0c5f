"""What from_scratch sends in a step: every call, and all bytes."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from course.project.milestones import MILESTONES
from course.project.models import MODELS, Drawn, blocks
from course.project.scenarios import CAP
from course.project.submission import found
from from_scratch import fsdp
from from_scratch.ddp import in_buckets
from minidist import Counted, Ours, launch
from minidist.comm.counted import CountedCall

Calls = list[CountedCall]
WAYS = [name for name, milestone in MILESTONES.items() if milestone.train]


def build() -> nn.Module:
    return MODELS["nested modules"].build(Drawn(0))


def step(way: str) -> tuple[Calls, int]:
    """The calls of this rank's second step, and the bytes of its messages."""
    torch.manual_seed(0)
    comm = Counted(Ours(algorithm="ring"))
    milestone = MILESTONES[way]
    kind = found("from_scratch", milestone.file, *milestone.names)
    net = build()
    rows = torch.randn(3, next(net.parameters()).shape[1]).double()
    wrapped = milestone.train(kind, net, comm, CAP)
    for _ in range(2):
        comm.clear()
        wrapped.model(rows).square().mean().backward()
        wrapped.synchronize()
        wrapped.optimizer.step()
        wrapped.optimizer.zero_grad()
    return comm.calls, comm.bytes_sent


def padded(parameters: list[nn.Parameter], ranks: int) -> int:
    """Bytes of a buffer of these parameters in equal shards."""
    numel = sum(parameter.numel() for parameter in parameters)
    return -(-numel // ranks) * ranks * parameters[0].element_size()


@cache
def steps(ranks: int) -> dict[str, list[tuple[Calls, int]]]:
    """Of each way to train, what every rank sends."""
    of_ranks = launch(lambda: [*map(step, WAYS)], ranks)
    return dict(zip(WAYS, zip(*of_ranks, strict=True), strict=True))  # type: ignore[arg-type]


def check(ranks: int, way: str, right: Callable[[Calls], bool], bytes_of_all: int) -> None:
    found = steps(ranks)[way]
    for calls, _ in found:
        assert right(calls), calls
    assert sum(sent for _, sent in found) == bytes_of_all


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(ranks: int) -> None:
    sizes = [parameter.nbytes for parameter in build().parameters()]
    least = 2 * (ranks - 1) * sum(sizes)
    each = [CountedCall("all_reduce", size) for size in sizes]
    check(ranks, "DDP, per parameter", lambda calls: calls == each, least)
    check(ranks, "DDP, flat", lambda calls: calls == [CountedCall("all_reduce", sum(sizes))], least)
    for way in ("DDP, bucketed", "DDP, overlapped"):
        check(ranks, way, lambda calls: 1 < len(calls) < len(sizes), least)


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero(ranks: int) -> None:
    net = build()
    buckets = in_buckets(list(net.parameters()), CAP)
    assert len(buckets) > 2
    shares = [padded(bucket, ranks) for bucket in buckets]
    reduced, gathered = (
        [CountedCall(name, size) for size in shares] for name in ("reduce_scatter", "all_gather")
    )
    least = 2 * (ranks - 1) * sum(shares)
    check(ranks, "ZeRO-1", lambda calls: calls == reduced + gathered, least)
    check(ranks, "ZeRO-2", lambda calls: sorted(calls) == sorted(reduced + gathered), least)
    whole = padded(list(net.parameters()), ranks)
    both = [CountedCall(name, whole) for name in ("all_gather", "reduce_scatter")]
    check(ranks, "ZeRO-3", lambda calls: calls == both, 2 * (ranks - 1) * whole)


def units() -> list[int]:
    net = build()
    model = fsdp.FSDP(net, blocks(net), Ours())
    return [unit.buffer.nbytes for unit in model.units]


@pytest.mark.claim("E11")
def test_fsdp() -> None:
    sizes = launch(units, 3)[0]
    assert len(sizes) == 4

    def right(calls: Calls) -> bool:
        gathered = sorted(call.nbytes for call in calls if call.name == "all_gather")
        reduced = sorted(call.nbytes for call in calls if call.name == "reduce_scatter")
        return gathered == sorted(sizes * 2) and reduced == sorted(sizes)

    for way in ("FSDP", "FSDP, prefetch"):
        check(3, way, right, 3 * 2 * sum(sizes))
