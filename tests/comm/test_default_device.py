"""`torch.set_default_device` is for what the caller makes: messages and buffers have their own."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import minidist
from benchmarks.checks.collectives import ALGORITHMS
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO2
from minidist.parallel.ddp.powersgd import PowerSGD, power_sgd

SGD: Any = torch.optim.SGD
HOW: Any = {"lr": 0.1, "momentum": 0.9}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    with torch.device("cpu"):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))


def hooked(net: Any) -> Any:
    model = minidist.DistributedDataParallel(net)
    model.register_comm_hook(PowerSGD(minidist.Ours(), start=1), power_sgd)
    return model


def sharded(net: Any) -> Any:
    minidist.fully_shard(net[0])
    return minidist.fully_shard(net)


def units(net: Any) -> Any:
    return FSDP(net, [net[0]], minidist.Ours())


Ways = dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]]
WAYS: Ways = {
    "DDP": (minidist.DistributedDataParallel, lambda net, _: SGD(net.parameters(), **HOW)),
    "PowerSGD": (hooked, lambda net, _: SGD(net.parameters(), **HOW)),
    "ZeRO": (
        minidist.DistributedDataParallel,
        lambda net, _: minidist.ZeroOptimizer(net.parameters(), SGD, **HOW),
    ),
    "fully_shard": (sharded, lambda net, _: SGD(net.parameters(), **HOW)),
    "the lesson's DDP": (
        lambda net: OverlappedDDP(net, minidist.Ours()),
        lambda net, _: SGD(net.parameters(), **HOW),
    ),
    "the lesson's ZeRO": (
        lambda net: net,
        lambda net, _: ZeRO2(net.parameters(), SGD, minidist.Ours(), **HOW),
    ),
    "the lesson's FSDP": (units, lambda _, model: SGD(model.shards, **HOW)),
}


def trained(way: str, x: torch.Tensor) -> torch.Tensor:
    """The last loss; the others' gradients are in it."""
    wrap, optimizer_of = WAYS[way]
    model = wrap(own := net())
    optimizer = optimizer_of(own, model)
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        getattr(model, "synchronize", int)()
        if "lesson" not in way:
            minidist.clip_grad_norm_(own, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack([loss.detach()])


def reduced(rows: torch.Tensor, algorithm: str) -> torch.Tensor:
    minidist.all_reduce(rows, minidist.ReduceOp.AVG, algorithm=algorithm)
    return rows


def exchanged(rows: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """By collectives that compare sizes, or gather what has none on some rank."""
    minidist.all_to_all_single(part, rows[0].clone(), [3, 3], [3, 3])
    minidist.gather(rows[0], [part, rows[1]] if dist.get_rank() == 0 else None)
    minidist.barrier()
    return torch.stack([part, rows[1]])


def results(default: Any) -> dict[str, torch.Tensor]:
    found = {}
    for way in [*WAYS, *ALGORITHMS["all_reduce"], "exchange"]:
        with torch.device("cpu"):
            x = torch.arange(12.0).view(2, 6) / 9 + dist.get_rank()
        with default:
            if way == "exchange":
                found[way] = exchanged(x, x[0].clone())
            else:
                found[way] = trained(way, x) if way in WAYS else reduced(x, way)
    return found


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """Those with another device first: buffers are kept."""
    return results(torch.device("meta")), results(nullcontext())


def test_results_do_not_depend_on_the_default_device() -> None:
    for found, right in minidist.launch(both, 2, device="cpu"):
        assert right["DDP"] < 1
        assert not [way for way in right if not torch.equal(right[way], found[way])]
