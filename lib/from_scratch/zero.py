"""ZeRO: each rank keeps 1/N of the optimizer state, then of the gradients too.

An all-reduce is a reduce-scatter followed by an all-gather. ZeRO steps the optimizer between the
two, on the shard that the reduce-scatter leaves on this rank, and gathers weights instead of
gradients. So stages 1 and 2 send what DDP sends::

    optimizer = ZeRO2(net.parameters(), torch.optim.AdamW, comm, lr=1e-3)
    loss_of(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

Stepping on a slice of a flat tensor is right for elementwise optimizers, such as SGD and Adam.
Rajbhandari et al., *ZeRO* (2020), sections 5 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from from_scratch import Comm
from from_scratch.ddp import check_alike, gradient_of, in_buckets


class FlatParameters:
    """Parameters in one buffer, padded so that it is N equal shards, of which rank r owns the r-th.

    The parameters are views of the buffer. Here `shard` is one too: to step on it changes them.
    """

    def __init__(self, parameters: list[Parameter], comm: Comm) -> None:
        check_alike(parameters)
        self.parameters, self.comm = parameters, comm
        self.shapes = [parameter.shape for parameter in parameters]
        shard_size = math.ceil(sum(shape.numel() for shape in self.shapes) / comm.ranks)
        self.buffer = parameters[0].new_zeros(comm.ranks * shard_size)
        for parameter, view in zip(parameters, self.views(self.buffer), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.shard = Parameter(self.buffer.chunk(comm.ranks)[comm.rank])
        self.missing = len(parameters)  # gradients still to come in this backward

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of `flat` that belongs to each parameter, in its shape."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = flat[: sum(sizes)].split(sizes)  # without the padding
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def reduce_gradients(self, before: Any = None) -> Any:
        """Start to add the mean gradient to the shard's, and free the parameters' own gradients.

        `before` is a reduction that is on its way. Returns the handle of this one.
        """
        flat, self.missing = torch.zeros_like(self.buffer), len(self.parameters)
        for parameter, view in zip(self.parameters, self.views(flat), strict=True):
            torch.div(gradient_of(parameter), self.comm.ranks, out=view)
            parameter.grad = None
        if self.shard.grad is not None:  # left by an earlier backward
            if before:
                before.wait()  # it may be the reduction that fills it
            flat.chunk(self.comm.ranks)[self.comm.rank].add_(self.shard.grad)
        self.shard.grad = torch.empty_like(self.shard)
        work = self.comm.reduce_scatter(self.shard.grad, flat, async_op=True)
        if before:
            before.wait()  # so at most two buffers of gradients are in memory
        return work


class ZeRO1:
    """Stage 1: the optimizer's state is sharded.

    An optimizer of `optimizer_class`, made with `defaults`, steps on the shards.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        optimizer_class: type[Optimizer],
        comm: Comm,
        bucket_cap_mb: float = 25,
        **defaults: Any,
    ) -> None:
        params = list(params)
        if any(isinstance(each, dict) for each in params):
            raise TypeError("params: expected parameters, not groups of them")
        for parameter in params:
            comm.broadcast(parameter.detach())  # all replicas start as rank 0's
        buckets = in_buckets([p for p in params if p.requires_grad], bucket_cap_mb)
        self.flats = [FlatParameters(bucket, comm) for bucket in buckets]
        self.inner = optimizer_class([flat.shard for flat in self.flats], **defaults)

    def step(self) -> None:
        """Average the gradients, step on this rank's shards, and gather all ranks' shards."""
        self.synchronize()
        self.inner.step()  # its state is that of the shards
        for flat in self.flats:
            flat.comm.all_gather(flat.buffer, flat.shard.detach())

    def synchronize(self) -> None:
        """Give each shard its part of the mean gradient."""
        for parameter in [each for flat in self.flats for each in flat.parameters]:
            gradient_of(parameter)  # or it raises, before anything is sent
        for flat in self.flats:
            flat.reduce_gradients().wait()

    def zero_grad(self) -> None:
        """Drop the gradients, also those that no step has used."""
        for flat in self.flats:
            flat.shard.grad, flat.missing = None, len(flat.parameters)
            for each in flat.parameters:
                each.grad = None


class ZeRO2(ZeRO1):
    """Stage 2: gradients are sharded too. Each bucket is reduced and freed during backward."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.last_reduce: Any = None
        self.reduced = 0  # buckets, in this backward
        for flat in self.flats:
            for parameter in flat.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, flat))

    def gradient_ready(self, flat: FlatParameters, _: Parameter) -> None:
        """Reduce the buckets that are full; autograd calls this when a gradient is complete."""
        flat.missing -= 1
        while not self.flats[self.reduced].missing:  # in the same order on all ranks
            self.last_reduce = self.flats[self.reduced].reduce_gradients(self.last_reduce)
            self.reduced = (self.reduced + 1) % len(self.flats)

    def synchronize(self) -> None:
        """Wait for the last bucket; the others have been reduced."""
        if self.reduced or any(flat.missing < len(flat.parameters) for flat in self.flats):
            raise RuntimeError("a parameter was not used in this step")
        if self.last_reduce:
            self.last_reduce.wait()
            self.last_reduce = None

    def zero_grad(self) -> None:
        """Drop the gradients, also those that no step has used."""
        super().zero_grad()
        self.reduced = 0
