"""The project's milestones: what to write, in which file, and how a training loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course.project.models import blocks
from minidist.comm.comm import Comm

RATE = 0.01


class Trained(NamedTuple):
    """What a training loop has of a wrapped model."""

    model: Any
    optimizer: Any
    synchronize: Callable[[], object]
    weights: Callable[[], dict[str, Tensor]]  # all of them, by name


Kind = Callable[..., Any]  # what the reader writes
Steps = type[Optimizer]
Train = Callable[..., Trained]  # train(kind, net, comm, cap_mb), and maybe another optimizer


def make(optimizer: Steps, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """An optimizer of this class."""
    return optimizer(parameters, lr=RATE)  # type: ignore[call-arg]


def nothing() -> None:
    """Nothing is left to do after backward."""


def with_ddp(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Steps = AdamW
) -> Trained:
    """A class of `ddp.py`; those that make buckets take their cap."""
    takes_cap = "bucket_cap_mb" in signature(kind).parameters
    model = kind(net, comm, *((cap_mb,) if takes_cap else ()))
    made = make(optimizer, net.parameters())
    return Trained(model, made, model.synchronize, lambda: dict(net.named_parameters()))


def with_zero(
    kind: Kind, net: nn.Module, comm: Comm, cap_mb: float, optimizer: Steps = AdamW
) -> Trained:
    """An optimizer of `zero.py`."""
    made = kind(net.parameters(), optimizer, comm, bucket_cap_mb=cap_mb, lr=RATE)
    return Trained(net, made, nothing, lambda: dict(net.named_parameters()))


def with_zero_3(
    kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Steps = AdamW
) -> Trained:
    """The wrapper of `zero3.py`."""
    model = kind(net, comm)
    return Trained(model, make(optimizer, model.parameters()), nothing, model.weights)


def with_fsdp(prefetch: bool) -> Train:
    """The wrapper of `fsdp.py`."""

    def train(
        kind: Kind, net: nn.Module, comm: Comm, _: float, optimizer: Steps = AdamW
    ) -> Trained:
        model = kind(net, blocks(net), comm, prefetch)

        def weights() -> dict[str, Tensor]:
            for unit in model.units:
                unit.unshard()
            return dict(net.named_parameters())

        return Trained(model, make(optimizer, model.shards), model.synchronize, weights)

    return train


@dataclass(frozen=True)
class Milestone:
    """One thing to write.

    Attributes:
        name: of the milestone.
        file: in which it stands, without `.py`.
        target: its class.
        train: wraps a model with it; buckets have a cap, in MiB.
        moved: bytes that all ranks send in a step, over (N - 1) times those of the model.
        lean: whether the task asks for the least memory.
        overlap: the share of the overlaps of `from_scratch` that the task asks for; there is more
            than one way to overlap.
    """

    name: str
    file: str
    target: str
    train: Train
    moved: int
    lean: bool = False
    overlap: float = 0.0


MILESTONES = [
    Milestone("DDP, per parameter", "ddp", "PerParameterDDP", with_ddp, 2, lean=True),
    Milestone("DDP, flat", "ddp", "FlatDDP", with_ddp, 2),
    Milestone("DDP, bucketed", "ddp", "BucketedDDP", with_ddp, 2, overlap=0.9),
    Milestone("DDP, overlapped", "ddp", "OverlappedDDP", with_ddp, 2, overlap=0.9),
    Milestone("ZeRO-1", "zero", "ZeRO1", with_zero, 2, lean=True),
    Milestone("ZeRO-2", "zero", "ZeRO2", with_zero, 2, lean=True, overlap=0.75),
    Milestone("ZeRO-3", "zero3", "ZeRO3", with_zero_3, 2),
    Milestone("FSDP", "fsdp", "FSDP", with_fsdp(False), 3, lean=True),
    Milestone("FSDP, prefetch", "fsdp", "FSDP", with_fsdp(True), 3, lean=True, overlap=0.75),
]


def by_name(name: str) -> Milestone:
    """The milestone of this name."""
    names = [each.name for each in MILESTONES]
    if name not in names:
        raise ValueError(f"no milestone {name!r}; there are 'ring' and {names}")
    return MILESTONES[names.index(name)]
