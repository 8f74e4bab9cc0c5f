"""Tensors that a learner's function makes: what each should be, and what may have become of it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

OFF = "is off by up to {off:.1e}."


def net(
    widths: Sequence[int], bias: bool = True, norm: bool = False, seed: int = 0
) -> nn.Sequential:
    """Linear layers of these widths, each with a Tanh or a LayerNorm after it."""
    torch.manual_seed(seed)
    linears = [nn.Linear(*shape, bias=bias) for shape in pairwise(widths)]
    after = [nn.LayerNorm(width) if norm else nn.Tanh() for width in widths[1:]]
    return nn.Sequential(*(part for both in zip(linears, after, strict=True) for part in both))


def layers(widths: Sequence[int]) -> str:
    """A model as a verdict names it: "with layers 4 → 5 → 2"."""
    return f"with layers {' → '.join(map(str, widths))}"


def gradients(model: nn.Module, step: int, rank: int | None, ranks: int) -> dict[str, Tensor]:
    """Gradients that a backward leaves on a rank; with rank None, in one process with all data."""
    model.zero_grad()
    backward(model, step, rank, ranks)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def flat(tensors: Iterable[Tensor | None]) -> Tensor:
    """A copy of those that there are, end to end."""
    there = [tensor.detach().flatten() for tensor in tensors if tensor is not None]
    return torch.cat([torch.zeros(0), *there])


def backward(model: nn.Module, step: int, rank: int | None, ranks: int) -> None:
    """Backward of the mean loss on a rank's samples of the batch; on all of them if None."""
    width = next(model.parameters()).shape[1]
    generator = torch.Generator().manual_seed(step)
    batch = 2 * torch.randn(4 * ranks, width, generator=generator) + 1
    own = batch if rank is None else batch.tensor_split(ranks)[rank]
    torch.autograd.backward((model(own) - 1).square().mean())


def near(found: Tensor, wanted: Tensor) -> bool:
    """True if two tensors are equal up to rounding."""
    return found.shape == wanted.shape and torch.allclose(
        found.double(), wanted.double(), rtol=1e-4, atol=1e-6
    )


def off(
    name: str,
    found: Tensor | None,
    right: Tensor,
    slips: Mapping[str, Tensor | None] | None = None,
    otherwise: str = OFF,
) -> str:
    """A sentence on what is wrong with a tensor, or "": of the slip that makes it, or another.

    Args:
        name: how the sentence begins.
        found: the learner's; None is none at all.
        right: what it should be.
        slips: a sentence about a mistake → the tensor that it makes.
        otherwise: a sentence about any other; "{off}" is the largest difference.
    """
    if found is not None and near(found, right):
        return ""
    for sentence, slip in (slips or {}).items():
        if found is slip or (found is not None and slip is not None and near(found, slip)):
            return f"{name} {sentence}{_at(found, right)}"
    if found is None or found.shape != right.shape:
        shown = None if found is None else list(found.shape)
        return f"{name} has shape {shown}, expected {list(right.shape)}."
    said = otherwise.format(off=(found - right).abs().max().item())
    return f"{name} {said}{_at(found, right)}"


def _at(found: Tensor | None, right: Tensor) -> str:
    """A sentence on the element that is furthest off, or "" where there is one at most."""
    if found is None or found.shape != right.shape or right.numel() < 2:
        return ""
    place = torch.unravel_index((found - right).abs().argmax(), right.shape)
    where = [int(each) for each in place]
    return f" At {where} it is {found[place].item():.4g}, expected {right[place].item():.4g}."


def times(found: Tensor, right: Tensor) -> float:
    """The factor by which `found` is nearest to `right`."""
    found, right = found.double().flatten(), right.double().flatten()
    return float(found @ right / (right @ right)) if right.any() else 0.0


def averages(found: Tensor, mean: Tensor, own: Tensor, ranks: int) -> dict[str, Tensor]:
    """Slips of an average over the ranks, of which this rank has `own`."""
    slips = {
        "is still its own: nothing of the other ranks is in it.": own,
        "is its own, divided, and not summed.": own / ranks,
        f"is the sum over {ranks} ranks, expected the average: divide by their number.":
            ranks * mean,
        "is divided twice by the number of ranks.": mean / ranks,
    }  # fmt: skip
    if found.shape == mean.shape and abs(factor := times(found, mean)) > 1e-6:
        scaled = f"is {factor:.3g} times the average: divide once, by the number of ranks."
        slips[scaled] = factor * mean
    return slips
