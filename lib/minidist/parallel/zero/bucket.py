"""Sharded buckets: parameters that lie in one flat buffer, of which each rank owns a shard.

Parameters are views of the buffer, so the all-gather that ends a step writes right into them.
"""

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from minidist.parallel.sharding.layouts import Flat
from minidist.parallel.sharding.partition import Named, shaped


class ShardedBucket:
    """Parameters of one group, dtype and device, moved into a buffer; this rank's shard of it."""

    def __init__(self, named: Sequence[Named], ranks: int, rank: int) -> None:
        self.name_of = {parameter: name for name, parameter in named}
        self.parameters = tuple(self.name_of)
        first = self.parameters[0]
        self.flat = Flat([each.shape for each in self.parameters], ranks, rank)
        self.buffer = torch.zeros(self.flat.padded, dtype=first.dtype, device=first.device)
        self.shard = self.flat.shard(self.buffer)  # 1-D [shard_numel], a view
        parts = zip(self.parameters, self.flat.parts(self.buffer), strict=True)
        self.views = {parameter: shaped(part, parameter) for parameter, part in parts}
        for parameter, view in self.views.items():
            view.copy_(parameter.detach())
            parameter.data = view
        self.ranges = dict(zip(self.parameters, self.flat.ranges(), strict=True))
        self.shards = tuple(  # this rank's part of each parameter, 1-D, maybe empty
            Parameter(piece, requires_grad=first.requires_grad)
            for piece in self.flat.pieces(self.shard)
        )
        self.flat_grad: torch.Tensor | None = None  # [padded]: packed, or on their way
        self.grad_shard: torch.Tensor | None = None  # [shard_numel]: the mean of this rank's shard
        self.stepped = False  # True if a step used `grad_shard`: the next gradients replace it
        self.used: set[Parameter] = set()  # those with a gradient since they were last zeroed
        self.expected: set[Parameter] = set()  # those that autograd has still to reach this round
        self._packed: set[Parameter] = set()  # those with a gradient in this round

    @property
    def trains(self) -> bool:
        return self.flat.numel > 0 and any(each.requires_grad for each in self.parameters)

    def expect_gradients(self) -> None:
        if self.stepped:
            self.zero_grad()
        self.expected = {each for each in self.parameters if each.requires_grad}
        self._packed.clear()

    def pack(self, parameter: Parameter, scale: float) -> None:
        """Copy a gradient, times `scale`, into the flat gradients, and free it."""
        gradient = parameter.grad
        self.expected.discard(parameter)
        if gradient is None:
            return
        if self.flat_grad is None:
            self.flat_grad = torch.empty_like(self.buffer)
        place = self.view(self.flat_grad, parameter)
        if parameter in self._packed:  # its second gradient in this backward
            place.add_(gradient, alpha=scale)
        else:
            torch.mul(gradient, scale, out=place)
        parameter.grad = None
        self._packed.add(parameter)

    def finish_packing(self, scale: float) -> torch.Tensor:
        if self.flat_grad is None:
            self.flat_grad = torch.empty_like(self.buffer)
        for parameter in self.parameters:
            self.pack(parameter, scale)
            if parameter not in self._packed:
                self.view(self.flat_grad, parameter).zero_()
        self.flat_grad[self.flat.numel :].zero_()  # the padding
        self.used |= self._packed
        return self.flat_grad

    def add_mean(self, mean: torch.Tensor) -> None:
        self.flat_grad = None
        self.grad_shard = mean if self.grad_shard is None else self.grad_shard.add_(mean)
        for shard, gradient in zip(self.shards, self.flat.pieces(self.grad_shard), strict=True):
            shard.grad = gradient if len(gradient) else None

    def assign_averaged(self) -> None:
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            shard.grad = None
            if parameter.grad is not None and len(shard):
                shard.grad = self.part(parameter.grad, parameter)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.stepped = False
        if set_to_none:
            self.grad_shard = None
            self.used.clear()
            for shard in self.shards:
                shard.grad = None
        elif self.grad_shard is not None:  # the shards' gradients are views of it
            self.grad_shard.zero_()

    def view(self, flat: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        view = self.views[parameter]
        return flat.as_strided(view.shape, view.stride(), view.storage_offset())

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [self.view(flat, parameter) for parameter in self.parameters]

    def part(self, tensor: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        """This rank's elements of a tensor of the parameter's shape, 1-D, as in its memory."""
        view, (start, end) = self.views[parameter], self.ranges[parameter]
        if tensor.stride() != view.stride() or tensor.is_conj() or tensor.is_neg():
            tensor = torch.empty_like(view, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
        return tensor.as_strided((view.numel(),), (1,))[start:end]
