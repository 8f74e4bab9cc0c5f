"""How parameters that travel together are sharded: by rows, or laid end to end and cut anywhere.

[Note: two layouts] Both give every rank as many elements, so that one all-gather of equal shards
brings the parameters back. They differ in where one rank's part ends and the next one's begins.

::

    2 ranks       weight [3, 2]      bias [3]
    RowLayout     a a a a|a a . .    b b|b .      rank 0: a a a a b b, rank 1: a a . . b .
    Flat          a a a a a|a b b b .             rank 0: a a a a a,   rank 1: a b b b .

`RowLayout` splits each parameter along its first dimension into N pieces of ceil(rows / N) rows,
the last ones smaller or empty, as PyTorch's FSDP2 does. A piece is a tensor with rows like its
parameter's. An all-gather returns them in the order of ranks, so they are copied once more to make
each parameter contiguous; and each parameter is padded for itself. `Flat` is the flat parameter of
PyTorch's first FSDP (Zhao et al. 2023, 3.2.1) and of ZeRO: what is gathered *is* the parameters,
and less than N elements are padding; but a piece has no shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from minidist.parallel.sharding.flat import Flat


class RowLayout:
    """Each tensor split along its first dimension: see [Note: two layouts].

    Args:
        shapes: of the tensors; one without dimensions counts as one row.
        ranks: the number of shards.
        rank: whose pieces `pieces` and `piece` return.

    Attributes:
        shard_numel: elements of one rank's shard, padding included.
        padded: `ranks * shard_numel`, the elements that an all-gather returns.
        flat_numel: elements of the flat buffer in which the whole tensors lie.
        in_place: True if that buffer is what an all-gather returns.
    """

    in_place = False

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.shapes, self.ranks, self.rank = [torch.Size(shape) for shape in shapes], ranks, rank
        self._rowed = [shape or torch.Size([1]) for shape in self.shapes]
        self._heights = [-(-shape[0] // ranks) for shape in self._rowed]  # rows of a full piece
        self._lengths = [n * s[1:].numel() for n, s in zip(self._heights, self._rowed, strict=True)]
        *self._offsets, self.shard_numel = accumulate(self._lengths, initial=0)
        self._sizes = [shape.numel() for shape in self.shapes]
        self.padded, self.flat_numel = ranks * self.shard_numel, sum(self._sizes)

    def piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the index-th tensor, of which all is given; maybe none."""
        height = self._heights[index]
        return tensor.view(self._rowed[index])[self.rank * height : (self.rank + 1) * height]

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows of each tensor: views of its shard, 1-D [shard_numel]."""
        found = []
        for offset, height, shape in zip(self._offsets, self._heights, self._rowed, strict=True):
            rows = min(max(shape[0] - self.rank * height, 0), height)
            mine = torch.Size([rows, *shape[1:]])
            found.append(shard.narrow(0, offset, mine.numel()).view(mine))
        return found

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The whole tensors: views of the flat buffer, 1-D [flat_numel]."""
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """Copy whole tensors into 1-D [padded], in the order of ranks, padded with zeros."""
        if self.padded != self.flat_numel:
            table.zero_()
        pairs = list(self._pairs(table, [tensor.reshape(-1) for tensor in tensors]))
        if pairs:
            torch._foreach_copy_([place for place, _ in pairs], [part for _, part in pairs])

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Copy what an all-gather returned, 1-D [padded], into the flat buffer."""
        pairs = list(self._pairs(gathered, torch.split(flat, self._sizes)))
        if pairs:
            torch._foreach_copy_([part for _, part in pairs], [place for place, _ in pairs])

    def tensors(self, gathered: torch.Tensor) -> list[torch.Tensor]:
        """The whole tensors in what an all-gather returned: copies."""
        flat = gathered.new_empty(self.flat_numel)
        self.unpack(gathered, flat)
        return self.views(flat)

    def _pairs(
        self, table: torch.Tensor, flats: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same elements in a table of N shards, and in the flattened whole tensors.

        For each tensor: those of all ranks with a full piece, then those of the one with the rest.
        """
        table = table.view(self.ranks, -1) if self.padded else table
        for flat, offset, length in zip(flats, self._offsets, self._lengths, strict=True):
            if not length:
                continue
            full, rest = divmod(len(flat), length)
            yield table[:full, offset : offset + length], flat[: full * length].view(full, length)
            if rest:
                yield table[full, offset : offset + rest], flat[full * length :]


Layout = RowLayout | Flat
LAYOUTS: dict[str, type[Layout]] = {"dim0": RowLayout, "flat": Flat}
