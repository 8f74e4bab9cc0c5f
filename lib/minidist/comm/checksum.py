"""A 64-bit hash of a tensor's bits, computed where the tensor is.

[Note: the checksum] The words w₀, w₁, … of a tensor's bits, of at most 32 bits each, are hashed as
Σ kᵢwᵢ mod 2⁶⁴ with odd 64-bit keys k (multilinear hashing: Lemire and Kaser, *Strongly Universal
String Hashing is Fast*, 2014). One word that differs always shows, since an odd number
times a difference below 2³² is never 0 mod 2⁶⁴; several escape with a chance of about 2⁻³². Bits
are compared, not numbers, so that 0.0 is not -0.0, and one NaN is not another. Each place has its
own key, so order matters. A sum runs well on a GPU, and the host reads nothing before the last
tensor is hashed. Long tensors go by pieces, so that their products take little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch

PIECE = 1 << 18  # words hashed at once: their products take 2 MiB
WORDS = {1: torch.uint8, 2: torch.int16}  # what bits are read as, by the bytes of an element


@torch.no_grad()
def checksums(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The hash of each tensor's content: see [Note: the checksum].

    Args:
        tensors: of any shapes, dtypes, strides and devices. Shape and dtype are not part of it.

    Returns:
        signed 64-bit integers. They are read from each device at once, when all are there.
    """
    numbers = [_hashed(tensor) for tensor in tensors]
    found = [0] * len(numbers)
    for device in {number.device for number in numbers}:
        places = [place for place, number in enumerate(numbers) if number.device == device]
        values = torch.stack([numbers[place] for place in places]).tolist()
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found


def _hashed(tensor: torch.Tensor) -> torch.Tensor:
    """The hash of one, on its device."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    keys = _keys(tensor.device)
    for words in _pieces(tensor.resolve_conj().resolve_neg()):
        hashed = words.to(torch.int64, copy=True).mul_(keys[: len(words)]).sum()
        total = total * 0x5851F42D4C957F2D + hashed
    return total


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The bits in logical order, by whole rows, so that strided memory too is copied by pieces."""
    if not tensor.numel():
        return
    rows = tensor if tensor.dim() else tensor.view(1)
    size = tensor.element_size()
    length = rows[0].numel() * max(1, size // 4)
    for some in torch.split(rows, max(1, PIECE // length)):
        flat = some.reshape(-1).contiguous()
        flat = flat.as_strided(flat.shape, (1,))  # a single element may have any stride
        yield from torch.split(flat.view(WORDS.get(size, torch.int32)), PIECE)


@lru_cache
def _keys(device: torch.device) -> torch.Tensor:
    """Odd numbers that look random: splitmix64 (Steele, Lea and Flood, 2014) of 1, 2, …."""
    keys = torch.arange(1, PIECE + 1, device=device) * (0x9E3779B97F4A7C15 - 2**64)
    keys = (keys ^ (keys >> 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    keys = (keys ^ (keys >> 27)) * (0x94D049BB133111EB - 2**64)
    return keys ^ (keys >> 31) | 1
