"""How a block of parameters is cut among the ranks: by rows, or laid end to end and cut anywhere.

[Note: two layouts] Both give every rank as many elements, so that one all-gather of equal parts
makes the parameters whole. They differ in where the cuts fall.

::

    2 ranks      weight [3, 2]      bias [3]
    Rows         a a a a|a a . .    b b|b .      rank 0: a a a a b b, rank 1: a a . . b .
    Laid         a a a a a|a b b b .             rank 0: a a a a a,   rank 1: a b b b .

*Rows* cuts each parameter by its first dimension into N chunks of ceil(rows / N) rows, the last
ones smaller or empty, as PyTorch's FSDP2. A shard is a tensor with rows like its parameter's. What
an all-gather gives is ordered by ranks, so it is copied once more to make each parameter
contiguous; and each parameter is padded for itself. *Laid* is the flat parameter of PyTorch's first
FSDP (Zhao et al. 2023, 3.2.1) and of ZeRO: what is gathered *is* the parameters, and less than N
elements are padding; but a shard is a piece without a shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from minidist.parallel.sharding.flat import Flat

Tensors = list[torch.Tensor]


class Layout(Protocol):
    """Where the parts of a few tensors of one dtype lie; it holds no memory.

    Attributes:
        shapes: of the whole tensors.
        shard_numel: elements of the part that one rank keeps, padding included.
        padded: `ranks * shard_numel`, elements of what an all-gather gives.
        whole_numel: elements of the flat tensor in which the whole ones lie.
        in_place: whether that flat tensor is what an all-gather gives.
    """

    shapes: list[torch.Size]
    shard_numel: int
    padded: int
    whole_numel: int
    in_place: bool

    def views(self, local: torch.Tensor) -> Tensors:
        """Of 1-D [shard_numel], this rank's: a view for each tensor, in its shard's shape."""

    def parameters(self, flat: torch.Tensor) -> Tensors:
        """Of 1-D [whole_numel]: a view for each tensor, in its own shape."""

    def arrange(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Copy what an all-gather gave, 1-D [padded], into 1-D [whole_numel]."""

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """Copy whole tensors into 1-D [padded], in the order of ranks; what is left is zeros."""

    def places(self, index: int, table: torch.Tensor) -> Tensors:
        """Of 1-D [padded]: views of where the index-th tensor lies, in the order of ranks."""

    def wholes(self, gathered: torch.Tensor) -> Tensors:
        """Of what an all-gather gave, 1-D [padded]: the whole tensors; views where they can be."""

    def cut(self, index: int, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the index-th whole tensor, in its shard's shape; a view."""


class Rows:
    """Each tensor cut by its first dimension: see [Note: two layouts].

    Args:
        shapes: of the tensors; one without dimensions counts as one row.
        ranks: into how many parts.
        rank: whose part `views` and `cut` are about.
    """

    in_place = False

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.shapes, self._ranks, self._rank = [torch.Size(shape) for shape in shapes], ranks, rank
        self._rowed = [shape if len(shape) else torch.Size([1]) for shape in self.shapes]
        self._chunks = [-(-shape[0] // ranks) for shape in self._rowed]  # rows of a part
        lengths = [n * s[1:].numel() for n, s in zip(self._chunks, self._rowed, strict=True)]
        *self._offsets, self.shard_numel = accumulate(lengths, initial=0)
        self._lengths = lengths
        self._sizes = [shape.numel() for shape in self.shapes]
        self.padded, self.whole_numel = ranks * self.shard_numel, sum(self._sizes)

    def views(self, local: torch.Tensor) -> Tensors:
        """As `Layout.views`: `[rows, ...]`, the rows maybe 0."""
        found = []
        for index, shape in enumerate(self._rowed):
            start, end = self._rows(index)
            mine = torch.Size([end - start, *shape[1:]])
            found.append(local.narrow(0, self._offsets[index], mine.numel()).view(mine))
        return found

    def parameters(self, flat: torch.Tensor) -> Tensors:
        """As `Layout.parameters`."""
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def arrange(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """As `Layout.arrange`."""
        pairs = list(self._pairs(gathered, torch.split(flat, self._sizes)))
        if pairs:
            torch._foreach_copy_([mine for _, mine in pairs], [theirs for theirs, _ in pairs])

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """As `Layout.pack`."""
        if self.padded != self.whole_numel:
            table.zero_()
        pairs = list(self._pairs(table, [tensor.reshape(-1) for tensor in tensors]))
        if pairs:
            torch._foreach_copy_([place for place, _ in pairs], [part for _, part in pairs])

    def places(self, index: int, table: torch.Tensor) -> Tensors:
        """As `Layout.places`."""
        offset, length, left = self._offsets[index], self._lengths[index], self._sizes[index]
        rows = table.view(self._ranks, -1)[:, offset : offset + length]
        return [row[: max(0, left - rank * length)] for rank, row in enumerate(rows)]

    def wholes(self, gathered: torch.Tensor) -> Tensors:
        """As `Layout.wholes`: copies."""
        flat = gathered.new_empty(self.whole_numel)
        self.arrange(gathered, flat)
        return self.parameters(flat)

    def cut(self, index: int, whole: torch.Tensor) -> torch.Tensor:
        """As `Layout.cut`."""
        start, end = self._rows(index)
        return (whole if whole.dim() else whole.view(1))[start:end]

    def _rows(self, index: int) -> tuple[int, int]:
        """Which rows this rank has: from start to before end."""
        rows, chunk = self._rowed[index][0], self._chunks[index]
        return min(self._rank * chunk, rows), min((self._rank + 1) * chunk, rows)

    def _pairs(
        self, table: torch.Tensor, flats: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What belongs together in a table of N rows and in the flattened whole tensors.

        For each tensor: the ranks with a full part, and then the one that has the rest.
        """
        table = table.view(self._ranks, -1) if self.padded else table
        for flat, offset, length in zip(flats, self._offsets, self._lengths, strict=True):
            if not length:
                continue
            full, rest = divmod(len(flat), length)
            yield table[:full, offset : offset + length], flat[: full * length].view(full, length)
            if rest:
                yield table[full, offset : offset + rest], flat[full * length :]


class Laid:
    """The tensors end to end, cut in equal slices: see [Note: two layouts].

    Args: as of `Rows`.
    """

    in_place = True

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self._flat = Flat(shapes, ranks, rank)
        self.shapes, self.shard_numel = self._flat.shapes, self._flat.shard_numel
        self.padded = self.whole_numel = self._flat.padded

    def views(self, local: torch.Tensor) -> Tensors:
        """As `Layout.views`: 1-D pieces, maybe empty."""
        return self._flat.pieces(local)

    def parameters(self, flat: torch.Tensor) -> Tensors:
        """As `Layout.parameters`."""
        return self._flat.views(flat)

    def arrange(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """As `Layout.arrange`: they are the same memory."""

    def pack(self, tensors: Sequence[torch.Tensor], table: torch.Tensor) -> None:
        """As `Layout.pack`."""
        self._flat.padding(table).zero_()
        torch._foreach_copy_(self._flat.parts(table), [tensor.reshape(-1) for tensor in tensors])

    def places(self, index: int, table: torch.Tensor) -> Tensors:
        """As `Layout.places`."""
        return [self._flat.parts(table)[index]]

    def wholes(self, gathered: torch.Tensor) -> Tensors:
        """As `Layout.wholes`: views."""
        return self.parameters(gathered)

    def cut(self, index: int, whole: torch.Tensor) -> torch.Tensor:
        """As `Layout.cut`."""
        start, end = self._flat.ranges()[index]
        return whole.reshape(-1)[start:end]


LAYOUTS: dict[str, type[Rows] | type[Laid]] = {"dim0": Rows, "flat": Laid}
