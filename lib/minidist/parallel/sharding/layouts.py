"""How parameters that travel together are sharded: by rows, or laid end to end and cut anywhere.

[Note: two layouts] Both give every rank as many elements, so that one all-gather of equal shards
brings the parameters back. They differ in where one rank's part ends and the next one's begins.

::

    2 ranks       weight [3, 2]      bias [3]
    RowLayout     a a a a|a a . .    b b|b .      rank 0: a a a a b b, rank 1: a a . . b .
    FlatLayout    a a a a a|a b b b .             rank 0: a a a a a,   rank 1: a b b b .

`RowLayout` splits each parameter along its first dimension into N pieces of ceil(rows / N) rows,
the last ones smaller or empty, as PyTorch's FSDP2 does. A piece is a tensor with rows like its
parameter's. An all-gather returns them in the order of ranks, so they are copied once more to make
each parameter contiguous; and each parameter is padded for itself. `FlatLayout` is the flat
parameter of PyTorch's first FSDP (Zhao et al. 2023, 3.2.1) and of ZeRO: what is gathered *is* the
parameters, and less than N elements are padding; but a piece has no shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from minidist.parallel.sharding.flat import Flat

Tensors = list[torch.Tensor]


class Layout(Protocol):
    """Where the pieces of several tensors of one dtype lie; it holds no memory itself.

    Attributes:
        shapes: of the tensors.
        shard_numel: elements of one rank's shard, padding included.
        padded: `ranks * shard_numel`, the elements that an all-gather returns.
        flat_numel: elements of the flat buffer in which the full tensors lie.
        in_place: True if that buffer is what an all-gather returns.
    """

    shapes: list[torch.Size]
    shard_numel: int
    padded: int
    flat_numel: int
    in_place: bool

    def pieces(self, shard: torch.Tensor) -> Tensors:
        """This rank's piece of each tensor: views of its shard, 1-D [shard_numel]."""

    def piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's piece of the index-th tensor: a view of the full one."""

    def views(self, flat: torch.Tensor) -> Tensors:
        """The full tensors: views of the flat buffer, 1-D [flat_numel]."""

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """Copy full tensors into 1-D [padded], in the order of ranks, padded with zeros."""

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Copy what an all-gather returned, 1-D [padded], into the flat buffer."""

    def tensors(self, gathered: torch.Tensor) -> Tensors:
        """The full tensors in what an all-gather returned; views of it where possible."""


class RowLayout:
    """Each tensor split along its first dimension: see [Note: two layouts].

    Args:
        shapes: of the tensors; one without dimensions counts as one row.
        ranks: the number of shards.
        rank: whose pieces `pieces` and `piece` return.
    """

    in_place = False

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.shapes, self._ranks, self._rank = [torch.Size(shape) for shape in shapes], ranks, rank
        self._rowed = [shape if len(shape) else torch.Size([1]) for shape in self.shapes]
        self._heights = [-(-shape[0] // ranks) for shape in self._rowed]  # rows of a full piece
        self._lengths = [n * s[1:].numel() for n, s in zip(self._heights, self._rowed, strict=True)]
        *self._offsets, self.shard_numel = accumulate(self._lengths, initial=0)
        self._sizes = [shape.numel() for shape in self.shapes]
        self.padded, self.flat_numel = ranks * self.shard_numel, sum(self._sizes)

    def pieces(self, shard: torch.Tensor) -> Tensors:
        """As `Layout.pieces`: `[rows, ...]`, maybe with 0 rows."""
        found = []
        for index, shape in enumerate(self._rowed):
            start, end = self._rows(index)
            mine = torch.Size([end - start, *shape[1:]])
            found.append(shard.narrow(0, self._offsets[index], mine.numel()).view(mine))
        return found

    def piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """As `Layout.piece`."""
        start, end = self._rows(index)
        return (tensor if tensor.dim() else tensor.view(1))[start:end]

    def views(self, flat: torch.Tensor) -> Tensors:
        """As `Layout.views`."""
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """As `Layout.pack`."""
        if self.padded != self.flat_numel:
            table.zero_()
        pairs = list(self._pairs(table, [tensor.reshape(-1) for tensor in tensors]))
        if pairs:
            torch._foreach_copy_([place for place, _ in pairs], [part for _, part in pairs])

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """As `Layout.unpack`."""
        pairs = list(self._pairs(gathered, torch.split(flat, self._sizes)))
        if pairs:
            torch._foreach_copy_([part for _, part in pairs], [place for place, _ in pairs])

    def tensors(self, gathered: torch.Tensor) -> Tensors:
        """As `Layout.tensors`: copies."""
        flat = gathered.new_empty(self.flat_numel)
        self.unpack(gathered, flat)
        return self.views(flat)

    def _rows(self, index: int) -> tuple[int, int]:
        """Which rows of a tensor this rank keeps: from start to before end."""
        rows, height = self._rowed[index][0], self._heights[index]
        return min(self._rank * height, rows), min((self._rank + 1) * height, rows)

    def _pairs(
        self, table: torch.Tensor, flats: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same elements in a table of N shards, and in the flattened full tensors.

        For each tensor: those of all ranks with a full piece, then those of the one with the rest.
        """
        table = table.view(self._ranks, -1) if self.padded else table
        for flat, offset, length in zip(flats, self._offsets, self._lengths, strict=True):
            if not length:
                continue
            full, rest = divmod(len(flat), length)
            yield table[:full, offset : offset + length], flat[: full * length].view(full, length)
            if rest:
                yield table[full, offset : offset + rest], flat[full * length :]


class FlatLayout(Flat):
    """The tensors end to end, cut in equal shards: see [Note: two layouts].

    Args: as of `RowLayout`.
    """

    in_place = True

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        super().__init__(shapes, ranks, rank)
        self.flat_numel = self.padded

    def piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """As `Layout.piece`: 1-D."""
        start, end = self.ranges()[index]
        return tensor.reshape(-1)[start:end]

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """As `Layout.pack`."""
        self.padding(table).zero_()
        torch._foreach_copy_(self.parts(table), [tensor.reshape(-1) for tensor in tensors])

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """As `Layout.unpack`: they are the same memory."""

    def tensors(self, gathered: torch.Tensor) -> Tensors:
        """As `Layout.tensors`: views."""
        return self.views(gathered)


LAYOUTS: dict[str, type[RowLayout] | type[FlatLayout]] = {"dim0": RowLayout, "flat": FlatLayout}
