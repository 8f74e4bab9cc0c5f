"""Optimizers on a matrix and on its flat slices: whether a slice can be updated alone."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

STEPS, ROWS, COLUMNS = 10, 8, 6


def ten_steps(
    kind: type[torch.optim.Optimizer], cut: Callable[[Tensor], Iterable[Tensor]]
) -> Tensor:
    """The weights after ten steps of this optimizer on the parts into which `cut` divides them."""
    torch.manual_seed(0)
    parts = [torch.nn.Parameter(part.clone()) for part in cut(torch.randn(ROWS, COLUMNS))]
    optimizer = kind(parts, lr=0.1)  # type: ignore[call-arg]
    for _ in range(STEPS):
        for part, gradient in zip(parts, cut(torch.randn(ROWS, COLUMNS)), strict=True):
            part.grad = gradient.clone()
        optimizer.step()
    return torch.cat([part.detach().flatten() for part in parts])


def apart_on_slices(ranks: int, *names: str) -> dict[str, str]:
    """Optimizer of `torch.optim` → the largest difference that slicing makes, or a refusal."""
    found = {}
    for name in names:
        kind = getattr(torch.optim, name)
        whole = ten_steps(kind, lambda matrix: [matrix])
        try:
            sliced = ten_steps(kind, lambda matrix: matrix.flatten().chunk(ranks))
            found[name] = f"{(whole - sliced).abs().max().item():.2g}"
        except ValueError:
            found[name] = "refuses anything but a matrix"
    return found
