"""Two ways to give each of N ranks an equal part of a few tensors: flat, as ZeRO, or by rows.

[Note: flat] The tensors of one dtype are laid one after another, and zeros are added until N ranks
divide the whole. Rank r owns the r-th slice, wherever in the tensors the cuts fall: that is what a
reduce-scatter gives it, and what an all-gather wants of it. So every rank owns as much, one message
carries many tensors, and less than N elements are spent on padding. The price is that a tensor may
lie on two ranks or more: a rank's part of it is a 1-D *piece*, which has no shape, and may be
empty. What looks at an element alone, as SGD and Adam do, does not mind.

::

    three tensors, 10 elements      a a a a b b b c c c
    4 ranks, so 2 of padding        a a a a b b b c c c . .
    rank 0, 1, 2, 3                 a a a|a b b|b c c|c . .

After Rajbhandari et al., *ZeRO* (2020), section 5, and Zhao et al., *PyTorch FSDP* (2023), 3.2.

[Note: rows] Each tensor is split along its first dimension into N pieces of ceil(rows / N) rows;
the last ones are smaller, or empty. So a piece is a tensor with rows like its parameter's. A rank's
shard is its piece of each tensor, one after another, each padded to the size of a full piece: then
all shards are equally long, as an all-gather wants them. It returns them in the order of ranks, so
they are copied once more to make each tensor contiguous.

::

    2 ranks, weight [3, 2], bias [3]      a a a a|a a . .    b b|b .
    rank 0, 1                             a a a a b b,       a a . . b .

As PyTorch's `torch.distributed.fsdp.fully_shard` does it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch


class Flat:
    """Places of a few tensors in a flat one, and the slice that each rank owns: [Note: flat].

    It holds no memory: its methods return views of memory that others hold.
    """

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.rank = rank
        self.sizes = [shape.numel() for shape in shapes]
        *self.offsets, self.numel = accumulate(self.sizes, initial=0)
        self.shard_numel = -(-self.numel // ranks)  #: elements of a slice
        self.padded = self.shard_numel * ranks  #: elements of the flat tensor

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.split(flat, [*self.sizes, self.padded - self.numel])[:-1])

    def ranges(self) -> list[tuple[int, int]]:
        low = self.rank * self.shard_numel
        high = low + self.shard_numel
        return [
            (min(max(low - offset, 0), size), min(max(high - offset, 0), size))
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]

    def shard(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.narrow(0, self.rank * self.shard_numel, self.shard_numel)

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """Return what of each tensor lies in this rank's slice, 1-D and maybe empty."""
        lengths = [end - start for start, end in self.ranges()]
        return list(torch.split(shard, [*lengths, self.shard_numel - sum(lengths)])[:-1])


class RowLayout:
    """Places of the rows of a few tensors in the ranks' shards: see [Note: rows].

    A tensor without dimensions counts as one row. `shard_numel` is the elements of one rank's
    shard, padding included; `padded` those of all, which an all-gather returns.
    """

    def __init__(self, shapes: Sequence[torch.Size], ranks: int, rank: int) -> None:
        self.shapes, self.ranks, self.rank = shapes, ranks, rank
        self._rowed = [shape or torch.Size([1]) for shape in self.shapes]
        self._heights = [-(-shape[0] // ranks) for shape in self._rowed]  # rows of a full piece
        self._lengths = [n * s[1:].numel() for n, s in zip(self._heights, self._rowed, strict=True)]
        *self._offsets, self.shard_numel = accumulate(self._lengths, initial=0)
        self.padded = ranks * self.shard_numel

    def piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        height = self._heights[index]
        return tensor.view(self._rowed[index])[self.rank * height : (self.rank + 1) * height]

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows of each tensor: views of its shard, 1-D [shard_numel]."""
        return [
            part.view(height, *shape[1:])[: max(shape[0] - self.rank * height, 0)]
            for part, height, shape in zip(
                torch.split(shard, self._lengths), self._heights, self._rowed, strict=True
            )
        ]

    def pack(self, tensors: Sequence[torch.Tensor | None], table: torch.Tensor) -> None:
        """Copy whole tensors into 1-D [padded], in the order of ranks; zeros for None."""
        if table.numel() != sum(each.numel() for each in tensors if each is not None):
            table.zero_()  # the padding too
        if pairs := list(self._pairs(table, tensors)):
            torch._foreach_copy_([place for place, _ in pairs], [part for _, part in pairs])

    def unpack(self, table: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Copy what an all-gather returned, 1-D [padded], into whole contiguous tensors."""
        if pairs := list(self._pairs(table, tensors)):
            torch._foreach_copy_([part for _, part in pairs], [place for place, _ in pairs])

    def tensors(self, table: torch.Tensor) -> list[torch.Tensor]:
        whole = [table.new_empty(shape) for shape in self.shapes]
        self.unpack(table, whole)
        return whole

    def _pairs(
        self, table: torch.Tensor, tensors: Sequence[torch.Tensor | None]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield places in a table of N shards, and the same in the flattened whole tensors."""
        table = table.view(self.ranks, -1) if self.padded else table
        for tensor, offset, length in zip(tensors, self._offsets, self._lengths, strict=True):
            if tensor is None or not length:
                continue
            flat = tensor.reshape(-1)
            full, rest = divmod(len(flat), length)
            yield table[:full, offset : offset + length], flat[: full * length].view(full, length)
            if rest:
                yield table[full, offset : offset + rest], flat[full * length :]
