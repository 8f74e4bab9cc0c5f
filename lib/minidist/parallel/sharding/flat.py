"""Tensors laid end to end, and cut in equal slices: one for each rank.

[Note: who owns what] The tensors of one dtype are laid one after another, and zeros are added until
N ranks divide the whole. Rank r owns the r-th slice, wherever in the tensors the cuts fall: that is
what a reduce-scatter gives it, and what an all-gather wants of it. So every rank owns as much, one
message carries many tensors, and less than N elements are spent on padding. The price is that a
tensor may lie on two ranks or more: a rank's part of it is a 1-D *piece*, which has no shape, and
may be empty. What looks at an element alone, as SGD and Adam do, does not mind.

::

    three tensors, 10 elements      a a a a b b b c c c
    4 ranks, so 2 of padding        a a a a b b b c c c . .
    rank 0, 1, 2, 3                 a a a|a b b|b c c|c . .

After Rajbhandari et al., *ZeRO* (2020), section 5, and Zhao et al., *PyTorch FSDP* (2023), 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch


class Flat:
    """Where each of a few tensors lies in a flat one, and which slice of it each rank owns.

    It holds no memory: its methods return views of memory that others hold.

    Attributes:
        numel: elements of all tensors, without padding.
        padded: the same, rounded up to a multiple of `ranks`: the size of the flat tensor.
        shard_numel: elements of a slice, `padded / ranks`.
    """

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        self.shapes = [torch.Size(shape) for shape in shapes]
        self.sizes = [shape.numel() for shape in self.shapes]
        *self.offsets, self.numel = accumulate(self.sizes, initial=0)
        self.shard_numel = -(-self.numel // ranks)
        self.padded = self.shard_numel * ranks

    # ---- the whole tensors in a flat one, 1-D [padded] ----

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Each tensor's place in `flat`, 1-D."""
        return list(torch.split(flat, [*self.sizes, self.padded - self.numel])[:-1])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Each tensor's place in `flat`, in the tensor's shape."""
        return [part.view(shape) for part, shape in zip(self.parts(flat), self.shapes, strict=True)]

    def padding(self, flat: torch.Tensor) -> torch.Tensor:
        """What is behind the last tensor, maybe nothing."""
        return flat[self.numel :]

    # ---- a rank's slice ----

    def ranges(self) -> list[tuple[int, int]]:
        """For each tensor which of its elements this rank owns: from start to before end."""
        low = self.rank * self.shard_numel
        high = low + self.shard_numel
        return [
            (min(max(low - offset, 0), size), min(max(high - offset, 0), size))
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]

    def shard(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's slice of `flat`, 1-D [shard_numel]."""
        return flat.narrow(0, self.rank * self.shard_numel, self.shard_numel)

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """What of each tensor lies in this rank's slice, 1-D and maybe empty."""
        lengths = [end - start for start, end in self.ranges()]
        return list(torch.split(shard, [*lengths, self.shard_numel - sum(lengths)])[:-1])
