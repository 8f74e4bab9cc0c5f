"""What a rank of from_scratch holds, and the most that it allocates in a step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from from_scratch import ddp, fsdp, zero
from minidist import DistributedDataParallel, Ours, ZeroOptimizer, fully_shard, launch
from minidist.memory.meter import Meter

WIDTH, LAYERS, RANKS = 96, 8, 4
WEIGHTS = LAYERS * WIDTH * WIDTH * 4  # bytes
CAP = WIDTH * WIDTH * 4 / 2**20  # MiB of a layer
MOMENTUM: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "foreach": False}


def ring() -> Ours:
    """Not Gloo's own collectives: its threads may free a tensor a moment later."""
    return Ours(algorithm="ring")


def talk(numel: int) -> None:
    """A call in each of the two threads, which keep buffers, and free the tensors of the last."""
    for async_op in (False, True):
        if work := ring().all_reduce(torch.ones(numel), async_op=async_op):
            work.wait()


Ready = tuple[Any, Any, Callable[[], None]]  # model, optimizer, synchronize


def nothing() -> None:
    pass


def minidist_ddp(net: nn.Module) -> Ready:
    model = DistributedDataParallel(
        net, bucket_cap_mb=CAP, gradient_as_bucket_view=True, comm=ring()
    )
    return model, SGD(net.parameters(), **MOMENTUM), nothing


def minidist_fsdp(net: Any) -> Ready:
    for layer in net:
        fully_shard(layer, comm=ring())
    return fully_shard(net, comm=ring()), SGD(net.parameters(), **MOMENTUM), nothing


def scratch_ddp(net: nn.Module) -> Ready:
    model = ddp.OverlappedDDP(net, ring(), CAP)
    return model, SGD(net.parameters(), **MOMENTUM), model.synchronize


def scratch_fsdp(net: Any) -> Ready:
    model = fsdp.FSDP(net, net, ring())
    return model, SGD(model.shards, **MOMENTUM), model.synchronize


WAYS: dict[str, tuple[Callable[[nn.Module], Ready], Callable[[nn.Module], Ready]]] = {
    "DDP": (scratch_ddp, minidist_ddp),
    "ZeRO-1": (
        lambda net: (net, zero.ZeRO1(net.parameters(), SGD, ring(), **MOMENTUM), nothing),
        lambda net: (
            net,
            ZeroOptimizer(net.parameters(), SGD, gradients="local", comm=ring(), **MOMENTUM),
            nothing,
        ),
    ),
    "ZeRO-2": (
        lambda net: (
            net,
            zero.ZeRO2(net.parameters(), SGD, ring(), bucket_cap_mb=CAP, **MOMENTUM),
            nothing,
        ),
        lambda net: (
            net,
            ZeroOptimizer(
                net.parameters(), SGD, stage=2, bucket_cap_mb=CAP, comm=ring(), **MOMENTUM
            ),
            nothing,
        ),
    ),
    "FSDP": (scratch_fsdp, minidist_fsdp),
}


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def memory(way: str, library: int) -> tuple[float, float]:
    """Bytes held between two steps, and at the peak of the third, over those of the weights."""
    talk(LAYERS * WIDTH * WIDTH)
    meter = Meter()
    model, optimizer, synchronize = WAYS[way][library](build())

    def step() -> None:
        model(torch.ones(1, WIDTH)).sum().backward()
        synchronize()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    talk(1)
    curve = meter.curve(step)
    return curve.start / WEIGHTS, curve.peak / WEIGHTS


def measure() -> dict[str, list[tuple[float, float]]]:
    return {way: [memory(way, library) for library in (0, 1)] for way in WAYS}


def test_held_is_what_the_chapter_says_and_the_peak_is_that_of_minidist() -> None:
    found = launch(measure, RANKS)[0]
    held = {"DDP": 2, "ZeRO-1": 1 + 1 / RANKS, "ZeRO-2": 1 + 1 / RANKS, "FSDP": 2 / RANKS}
    peaks = []
    for way, [ours, minidist] in found.items():
        assert ours[0] == pytest.approx(held[way], rel=0.01), way
        assert ours[1] < 1.12 * minidist[1], way
        peaks.append(ours[1])
    assert peaks == sorted(peaks, reverse=True)
