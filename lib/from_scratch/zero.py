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

# mypy: disable-error-code=no-untyped-call
from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from from_scratch import Comm, Work
from from_scratch.ddp import in_buckets


class FlatParameters:
    """Parameters in one buffer, padded so that it is N equal shards, of which rank r owns the r-th.

    The parameters are views of the buffer, and so is `shard`: to step on it changes them.
    """

    def __init__(self, parameters: list[Parameter], comm: Comm) -> None:
        self.parameters, self.comm = parameters, comm
        self.sizes = [parameter.numel() for parameter in parameters]
        self.buffer = parameters[0].new_zeros(-(-sum(self.sizes) // comm.ranks) * comm.ranks)
        for parameter, view in self.views(self.buffer):
            view.copy_(parameter.detach())
            parameter.data = view
        comm.broadcast(self.buffer)  # all replicas start as rank 0's
        self.shard = Parameter(self.buffer.chunk(comm.ranks)[comm.rank])

    def views(self, flat: Tensor) -> list[tuple[Parameter, Tensor]]:
        """Each parameter, and its part of `flat` in its own shape."""
        pieces = flat[: sum(self.sizes)].split(self.sizes)
        return [(p, piece.view_as(p)) for p, piece in zip(self.parameters, pieces, strict=True)]

    def reduce_gradients(self, async_op: bool = False) -> Work | None:
        """Give the shard its part of the mean gradient; free the parameters' own gradients."""
        flat = torch.zeros_like(self.buffer)
        for parameter, view in self.views(flat):
            assert parameter.grad is not None
            torch.div(parameter.grad, self.comm.ranks, out=view)
            parameter.grad = None
        self.shard.grad = torch.empty_like(self.shard)
        return self.comm.reduce_scatter(self.shard.grad, flat, async_op=async_op)

    def gather(self) -> None:
        """Bring every rank's shard to all ranks."""
        self.comm.all_gather(self.buffer, self.shard.detach())


class ZeRO1:
    """Stage 1: the optimizer's state is sharded.

    Args:
        params: parameters, or groups of them as torch's optimizers take them.
        optimizer_class: of the optimizer that steps on the shards, made with `defaults`.
        comm: between the ranks.
        bucket_cap_mb: MiB after which a group's next parameter begins a new buffer.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[dict[str, Any]],
        optimizer_class: type[Optimizer],
        comm: Comm,
        bucket_cap_mb: float = math.inf,
        **defaults: Any,
    ) -> None:
        given: list[Any] = list(params)
        self.flats: list[FlatParameters] = []
        groups = []
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            buckets = in_buckets(list(group["params"]), bucket_cap_mb)
            flats = [FlatParameters(bucket, comm) for bucket in buckets]
            groups.append({**group, "params": [flat.shard for flat in flats]})
            self.flats += flats
        self.inner = optimizer_class(groups, **defaults)  # its state is that of the shards

    def step(self) -> None:
        """Average the gradients, step on this rank's shards, and gather all ranks' shards."""
        self.reduce_gradients()
        self.inner.step()
        for flat in self.flats:
            flat.gather()

    def reduce_gradients(self) -> None:
        """Give each shard its part of the mean gradient."""
        for flat in self.flats:
            flat.reduce_gradients()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.inner.zero_grad()


class ZeRO2(ZeRO1):
    """Stage 2: gradients are sharded too. Each bucket is reduced and freed during backward."""

    def __init__(self, *args: Any, bucket_cap_mb: float = 25, **defaults: Any) -> None:
        super().__init__(*args, **{"bucket_cap_mb": bucket_cap_mb, **defaults})
        self.in_flight: Work | None = None
        self.arrived = dict.fromkeys(self.flats, 0)  # gradients, in this backward
        for flat in self.flats:
            for parameter in flat.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, flat))

    def gradient_ready(self, flat: FlatParameters, _: Parameter) -> None:
        """Reduce the bucket if it is full; autograd calls this when a gradient is complete."""
        self.arrived[flat] += 1
        if self.arrived[flat] == len(flat.parameters):
            self.arrived[flat] = 0
            before, self.in_flight = self.in_flight, flat.reduce_gradients(async_op=True)
            if before:
                before.wait()  # so at most two buckets' gradients are in memory

    def reduce_gradients(self) -> None:
        """Wait for the last bucket; the others have been reduced."""
        if self.in_flight:
            self.in_flight.wait()
