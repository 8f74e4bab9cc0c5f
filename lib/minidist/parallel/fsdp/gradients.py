"""A block's gradients: whole as backward makes them, then this rank's part of their mean.

[Note: gradients that are not there] All ranks must send as much, so a parameter without a gradient
here goes as zeros: another rank may have used it. To tell if none has, those are -0.0, and zeros of
gradients that are there are 0.0: a sum is -0.0 only if all of it was. Then the shard's gradient
stays as it was, also None, as in one process that does not use the parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch.nn import Parameter

from minidist.parallel.fsdp.shard import Shard, plain
from minidist.parallel.sharding.layouts import Layout


class Owner(Protocol):
    """What is asked of the block."""

    wholes: list[Parameter]
    shards: list[Shard]
    local: torch.Tensor
    layout: Layout
    dtype: torch.dtype
    reduce_dtype: torch.dtype


class Gradients:
    """Those of a block's parameters.

    Args:
        block: its whole parameters get gradients by autograd, its shards by us.

    Attributes:
        kept: whole gradients of earlier backwards that wait to be averaged, or None.
    """

    def __init__(self, block: Owner) -> None:
        self._block = block
        self.kept: list[torch.Tensor | None] = [None] * len(block.layout.shapes)

    @property
    def wait(self) -> bool:
        """Whether there are whole gradients that wait to be averaged."""
        kept = any(gradient is not None for gradient in self.kept)
        return kept or any(whole.grad is not None for whole in self._block.wholes)

    def keep(self) -> None:
        """Add the whole gradients of this backward to those of earlier ones, as they are used."""
        for index, whole in enumerate(self._block.wholes):
            gradient, whole.grad = whole.grad, None
            if gradient is None:
                continue
            gradient = gradient.detach().to(self._block.reduce_dtype)
            before = self.kept[index]
            self.kept[index] = gradient if before is None else before.add_(gradient)

    def pack(self, scale: float) -> tuple[torch.Tensor, set[int]]:
        """Put the whole gradients, times `scale`, in the order of ranks, and let go of them.

        Returns:
            1-D [padded]; and which parameters had none: [Note: gradients that are not there].
        """
        block = self._block
        if any(gradient is not None for gradient in self.kept):
            self.keep()
            found = self.kept
        else:
            found = [whole.grad for whole in block.wholes]
        layout, device = block.layout, block.local.device
        table = torch.empty(layout.padded, dtype=block.reduce_dtype, device=device)
        zero = table.new_zeros(())
        pairs = zip(found, layout.shapes, strict=True)
        layout.pack([zero.expand(shape) if g is None else g for g, shape in pairs], table)
        absent = {index for index, gradient in enumerate(found) if gradient is None}
        self.drop()
        torch.add(zero, table, alpha=scale, out=table)  # 0 + ...: no gradient goes as -0.0
        for index in absent:
            for place in layout.places(index, table):
                place.fill_(-0.0)
        return table, absent

    def drop(self) -> None:
        """Let go of all whole gradients."""
        self.kept = [None] * len(self.kept)
        for whole in self._block.wholes:
            whole.grad = None

    def give(self, mean: torch.Tensor, absent: Collection[int]) -> None:
        """Add this rank's part of the averaged gradients to the shards' own.

        Args:
            mean: 1-D [shard_numel]; the gradients may be views of it afterwards.
            absent: which parameters had no gradient on this rank.
        """
        parts = self._block.layout.views(mean.to(self._block.dtype))
        given = []
        with plain():
            nowhere = _nowhere([i for i in absent if self._block.shards[i].requires_grad], parts)
            for index, shard in enumerate(self._block.shards):
                if not shard.requires_grad or index in nowhere:
                    continue
                if shard.grad is None:
                    shard.grad = parts[index]
                else:
                    shard.grad.add_(parts[index])
                given.append(shard)
        for shard in given:  # as autograd does with a parameter; private, and FSDP2 does the same
            for hook in (shard._post_accumulate_grad_hooks or {}).values():
                hook(shard)


def _nowhere(absent: Sequence[int], parts: Sequence[torch.Tensor]) -> set[int]:
    """Of those that this rank lacks, which no rank has: all elements are -0.0.

    On a GPU the host has to wait for the answer; so it asks once for all.
    """
    if not absent:
        return set()
    marked = [((parts[i] == 0) & parts[i].signbit()).all() for i in absent]
    told = torch.stack(marked).tolist()
    return {index for index, marks in zip(absent, told, strict=True) if marks}
