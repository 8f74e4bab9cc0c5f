"""Which dtype each part of the state has, and how much of it an optimizer keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Policy:
    """Which dtype each part of the state has.

    Attributes:
        name: for captions.
        weights: of the weights that forward and backward use.
        gradients: of the gradients.
        master: of a second, finer copy of the weights, to which the optimizer adds its small
            updates; None: there is none, the optimizer updates the weights themselves.
        moments: of the optimizer's running averages.
    """

    name: str
    weights: torch.dtype
    gradients: torch.dtype
    master: torch.dtype | None
    moments: torch.dtype


FP32 = Policy("fp32", torch.float32, torch.float32, None, torch.float32)
MIXED = Policy("mixed", torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}  # moments that it keeps of each parameter


def moments_of(asked: str, optimizer: str) -> int:
    """How many moments an optimizer keeps of each parameter.

    Args:
        asked: who wants to know, for the message.
        optimizer: one of `OPTIMIZERS`.

    Raises:
        ValueError: it is none of them.
    """
    if optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise ValueError(f"{asked}: optimizer must be one of {known}, got {optimizer!r}")
    return OPTIMIZERS[optimizer]
