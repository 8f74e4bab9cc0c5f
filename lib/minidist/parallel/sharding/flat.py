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

    It holds no memory; it is asked for views of memory that others hold.

    Args:
        shapes: of the tensors, which are of one dtype.
        ranks: how many slices.
        rank: this rank's, from 0 on.

    Attributes:
        ranks, rank: as passed.
        shapes, sizes: of each tensor; the size is its number of elements.
        offsets: where each begins in the flat tensor, in elements.
        numel: elements of all tensors together.
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

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """For each tensor the 1-D view of its place in `flat`, which is 1-D and [padded]."""
        return list(torch.split(flat, [*self.sizes, self.padded - self.numel])[:-1])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The same in the tensors' shapes."""
        return [part.view(shape) for part, shape in zip(self.parts(flat), self.shapes, strict=True)]

    def padding(self, flat: torch.Tensor) -> torch.Tensor:
        """The view of what is behind the last tensor, maybe empty."""
        return flat[self.numel :]

    def shard(self, flat: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """The view of a rank's slice of `flat`, 1-D and [shard_numel]; by default this rank's."""
        start = (self.rank if rank is None else rank) * self.shard_numel
        return flat[start : start + self.shard_numel]

    def ranges(self, rank: int | None = None) -> list[tuple[int, int]]:
        """For each tensor which of its flattened elements a rank owns: from start to before end.

        Where it owns none, both are equal.
        """
        low = (self.rank if rank is None else rank) * self.shard_numel
        high = low + self.shard_numel
        return [
            (min(max(low - offset, 0), size), min(max(high - offset, 0), size))
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """For each tensor the 1-D view of what of it lies in this rank's slice, maybe empty.

        Args:
            shard: this rank's slice, 1-D and [shard_numel], of whatever dtype.
        """
        *pieces, _ = torch.split(shard, self._lengths())
        return list(pieces)

    def _lengths(self) -> list[int]:
        """Of the pieces in this rank's slice, and at last of the padding in it."""
        lengths = [end - start for start, end in self.ranges()]
        return [*lengths, self.shard_numel - sum(lengths)]
