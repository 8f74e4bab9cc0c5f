"""Refusals of the newer lessons: on all ranks alike, so that none waits in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


def broadcast_text(text: str, src: int, device: torch.device, group: Any) -> str:
    """The text of rank `src`, on all ranks; its first 200 bytes."""
    sent = torch.tensor([*text.encode()[:200].ljust(200)], dtype=torch.uint8, device=device)
    dist.broadcast(sent, group=group, group_src=src)
    return bytes(sent.tolist()).decode().rstrip()


def describe(tensor: Tensor) -> str:
    """A tensor's shape and dtype."""
    return f"{[*tensor.shape]} of {tensor.dtype}"


def check_sender(tensor: Tensor, group: Any) -> None:
    """Refuse a rank outside the group, and what Gloo's `isend` cannot read, which ends a rank."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group")
    if tensor.device.type != "cpu" and dist.get_backend(group) == "gloo":
        raise ValueError(f"Gloo's isend cannot send what is on {tensor.device}: use NCCL, or a CPU")


def check_layers(layers: nn.Sequential, homes: Sequence[int], border: Tensor, group: Any) -> None:
    """Refuse layers that differ between ranks, do not divide, or share weights across them."""
    check_sender(border, group)
    stages, ranks = len(homes), dist.get_world_size(group)
    own = f"{len(layers)} layers, {stages} stages and a border of {describe(border)}"
    every = [broadcast_text(own, rank, border.device, group) for rank in range(ranks)]
    for rank, text in enumerate(every):
        if text != every[0]:
            raise ValueError(f"rank {rank} has {text}; rank 0 has {every[0]}")
    if {*homes} != {*range(ranks)} or not len(layers) or len(layers) % stages or stages % ranks:
        text = f"{len(layers)} layers, {stages} stages and {ranks} ranks"
        raise ValueError(f"{text}: each has to divide the one before, and each rank has a stage")
    if not border.is_floating_point():
        raise ValueError(f"border: expected floating point, got {border.dtype}")
    size = len(layers) // stages
    check_shared(layers, [homes[number // size] for number in range(len(layers))])


def check_shared(modules: Iterable[nn.Module], owners: Iterable[int]) -> None:
    """Refuse a weight of several ranks, each of which would have a part of its gradient."""
    found: dict[int, int] = {}
    for module, owner in zip(modules, owners, strict=True):
        for weight in module.parameters():
            other = found.setdefault(weight.data_ptr() or id(weight), owner)
            if other != owner:
                both = f"ranks {other} and {owner} share a weight of shape {[*weight.shape]}"
                raise ValueError(f"{both}: put what shares it on one rank")


def check_batch(works: Sequence[tuple[str, int, int]], stages: int, x: Tensor, y: Tensor) -> None:
    """Refuse an order for another model, and a batch that does not divide or has no labels."""
    kinds, places, micros = map(set, zip(*works, strict=True))
    if 1 + max(places) != stages:
        raise ValueError(f"the order is for {1 + max(places)} stages, the model has {stages}")
    if kinds - {*"FBIW"}:
        raise ValueError(f"works: expected F and B, or I and W for B, got {sorted(kinds)}")
    if not torch.is_grad_enabled():
        raise RuntimeError("a step computes gradients, too: call it outside torch.no_grad()")
    for each in (x, y):
        if not len(each) or len(each) % len(micros):
            raise ValueError(f"{len(each)} samples do not divide into {len(micros)} micro-batches")
    if not labels(y):
        raise ValueError("all labels of this batch are -100: there is nothing to learn from it")


def labels(y: Tensor) -> int:
    """The number of labels that count: all numbers, and all classes but -100."""
    return y.numel() if y.is_floating_point() else int((y != -100).sum())


def check_border(out: Any, border: Tensor, stage: int, src: int, first: bool, group: Any) -> None:
    """Refuse what a stage returns, None on other ranks, if it does not fit; at first on all."""
    text = ""
    if out is not None and (
        out.shape != border.shape or torch.promote_types(out.dtype, border.dtype) != border.dtype
    ):
        text = f"rank {src}: stage {stage} returns {describe(out)}, no border {describe(border)}"
    if first:
        text = broadcast_text(text, src, border.device, group)
    if text:
        raise ValueError(text)


def check_rounds(inner: Optimizer, every: int) -> None:
    """Refuse what cannot be averaged as one tensor, every so many steps."""
    if not isinstance(inner, Optimizer):
        raise TypeError(f"inner: expected an optimizer of torch's kind, got {type(inner).__name__}")
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every: expected a number of steps from 1 on, got {every}")
    held = [parameter for group in inner.param_groups for parameter in group["params"]]
    if not any(parameter.requires_grad for parameter in held):
        raise ValueError("none of the optimizer's parameters requires a gradient")
    if len({(parameter.dtype, parameter.device) for parameter in held}) > 1:
        raise ValueError("parameters of several dtypes or devices do not fit in one tensor")


def check_trained(inner: Optimizer, averaged: Sequence[Tensor]) -> None:
    """Refuse weights that would be trained and never averaged."""
    held = [parameter for group in inner.param_groups for parameter in group["params"]]
    if new := {id(each) for each in held if each.requires_grad} - {*map(id, averaged)}:
        raise RuntimeError(f"{len(new)} weights were thawed or added after the first round began")


def check_round(steps: int, every: int) -> None:
    """Refuse the state of a step inside a round, in which each rank has weights of its own."""
    if steps % every:
        raise ValueError(f"step {steps} is inside a round of {every}: join at the end of one")
