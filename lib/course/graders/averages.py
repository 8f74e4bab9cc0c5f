"""Gradients of a batch of which each rank has a part, and what may have become of their average."""

import math

import torch
from torch import nn


def backward(model: nn.Module, step: int, rank: int | None, ranks: int) -> None:
    """Backward of the mean loss on a rank's samples of the batch; on all of them if None."""
    width = next(model.parameters()).shape[1]
    generator = torch.Generator().manual_seed(step)
    batch = 2 * torch.randn(4 * ranks, width, generator=generator) + 1
    own = batch if rank is None else batch.tensor_split(ranks)[rank]
    torch.autograd.backward((model(own) - 1).square().mean())


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors are the same but for rounding."""
    return found.shape == wanted.shape and torch.allclose(
        found.double(), wanted.double(), rtol=1e-4, atol=1e-6
    )


def why_not(found: torch.Tensor, mean: torch.Tensor, own: torch.Tensor, ranks: int) -> str:
    """What a rank has instead of the mean, where one of its own would be `own`; "" if unknown."""
    if found.shape != mean.shape:
        return f"has shape {list(found.shape)}, expected {list(mean.shape)}."
    if near(found, own):
        return "is still its own: nothing of the other ranks is in it."
    if near(found * ranks, own):
        return "is its own, divided, and not summed."
    found, mean = found.double().flatten(), mean.double().flatten()
    times = float(found @ mean / (mean @ mean)) if mean.any() else 0.0
    if not near(found, times * mean) or abs(times) < 1e-6:
        return ""
    if math.isclose(times, ranks, rel_tol=1e-3):
        return f"is the sum over {ranks} ranks, expected the average: divide by their number."
    if math.isclose(times, 1 / ranks, rel_tol=1e-3):
        return "is divided twice by the number of ranks."
    return f"is {times:.3g} times the average: divide once, by the number of ranks."
