"""Every way of from_scratch to train a model, beside minidist's and torch's, and the models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from from_scratch import Comm, ddp, fsdp, zero, zero3
from tests.support.models import gpt, score, tokens
from tests.support.training import mlp, numbers

ROWS = 12  # of a batch: a whole number for 1, 2, 3 or 4 ranks
CAP = 2e-4  # MiB: several buckets of each model
RATE = 0.01

Build = Callable[[], nn.Module]
Loss = Callable[[Any, int, slice], torch.Tensor]  # loss(model, step, rows of the batch)


@dataclass
class Wrapped:
    """What a training loop uses of a wrapped model."""

    model: Any
    optimizer: Any
    synchronize: Callable[[], None] = lambda: None
    weights: Callable[[], dict[str, torch.Tensor]] | None = None


def mlp_loss(net: Any, step: int, rows: slice) -> torch.Tensor:
    return net(numbers(0, step, ROWS, 5)[rows]).square().mean()


def gpt_loss(net: Any, step: int, rows: slice) -> torch.Tensor:
    return score(net, tokens(step, ROWS)[rows])


def nested() -> nn.Module:
    inner = nn.Sequential(mlp(3, 7), mlp(7, 4))
    return nn.Sequential(mlp(5, 3), inner, nn.Linear(4, 1, dtype=torch.float64))


MODELS: dict[str, tuple[Build, Loss]] = {
    "mlp": (lambda: mlp(5, 7, 3, 1), mlp_loss),
    "tied gpt": (gpt, gpt_loss),
    "nested": (nested, mlp_loss),
}


def groups(net: nn.Module) -> list[dict[str, Any]]:
    some, *others = net.parameters()
    return [{"params": [some], "lr": 0.03}, {"params": others, "weight_decay": 0.1}]


def blocks(net: nn.Module) -> list[nn.Module]:
    return [each for each in net.modules() if type(each).__name__ in ("Sequential", "_Block")]


def of_ddp(kind: type[ddp.PerParameterDDP], net: nn.Module, comm: Comm, **cap: float) -> Wrapped:
    model = kind(net, comm, **cap)
    return Wrapped(model, AdamW(groups(net), RATE), model.synchronize)


def of_zero(kind: type[zero.ZeRO1], net: nn.Module, comm: Comm, **cap: float) -> Wrapped:
    return Wrapped(net, kind(groups(net), AdamW, comm, lr=RATE, **cap))


def of_zero3(net: nn.Module, comm: Comm) -> Wrapped:
    model = zero3.ZeRO3(net, comm)
    return Wrapped(model, AdamW(model.parameters(), RATE), weights=model.weights)


def of_fsdp(net: nn.Module, comm: Comm, prefetch: bool) -> Wrapped:
    model = fsdp.FSDP(net, blocks(net), comm, prefetch)

    def weights() -> dict[str, torch.Tensor]:
        for unit in model.units:
            unit.unshard()
        return dict(net.named_parameters())

    return Wrapped(model, AdamW(model.shards, RATE), model.synchronize, weights)


FROM_SCRATCH: dict[str, Callable[[nn.Module, Comm], Wrapped]] = {
    "per parameter": partial(of_ddp, ddp.PerParameterDDP),
    "flat": partial(of_ddp, ddp.FlatDDP),
    "bucketed": partial(of_ddp, ddp.BucketedDDP, bucket_cap_mb=CAP),
    "overlapped": partial(of_ddp, ddp.OverlappedDDP, bucket_cap_mb=CAP),
    "ZeRO-1": partial(of_zero, zero.ZeRO1),
    "ZeRO-2": partial(of_zero, zero.ZeRO2, bucket_cap_mb=CAP),
    "ZeRO-3": of_zero3,
    "FSDP": partial(of_fsdp, prefetch=False),
    "FSDP, prefetch": partial(of_fsdp, prefetch=True),
}
WITHOUT_GROUPS = {"ZeRO-3", "FSDP", "FSDP, prefetch"}
