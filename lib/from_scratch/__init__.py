"""The lesson: the ring, DDP, ZeRO, FSDP; a pipeline, split layers and local SGD; on a `Comm`.

`minidist.Ours()` and `minidist.Native()` are such a `Comm`. The files leave out what real use
needs. Most of it they refuse with a sentence; what they cannot is in the chapters' tables *What
this code does not notice*. This is where `minidist` does it:

==================================================  ============================================
left out                                            done in
==================================================  ============================================
groups of parameters, several dtypes or devices     `minidist.parallel.sharding.partition`
parameters that a rank does not use in a step       `parallel.ddp.reducer`, `parallel.fsdp.unit`
gradients that arrive in different order            `parallel.ddp.bucket`, `parallel.zero.bucket`
clipping, checkpoints of model and optimizer        `parallel.full_model`, `zero.state_dict`
mixed precision, a shard for each parameter         `parallel.fsdp.param_group`
activation checkpointing, several outputs of units  `parallel.fsdp.unit`
`no_sync`, waiting for gradients automatically      `parallel.autograd.backward`
buffers that change from step to step               `parallel.ddp.ddp`
reporting where ranks disagree                      `comm.agreement`, `parallel.checks`
biases, dropout and caches in split layers          torch's `parallelize_module`
attention in fused kernels, other masks             torch's `context_parallel`
==================================================  ============================================
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Comm(Protocol):
    """Four calls, made by every rank in the same order.

    With `async_op` they return a handle, whose `wait()` returns when the result is in place.
    """

    rank: int
    ranks: int

    def broadcast(self, tensor: Tensor, group_src: int = ..., async_op: bool = ...) -> Any:
        """Copy rank `group_src`'s tensor to all ranks."""

    def all_reduce(self, tensor: Tensor, *, async_op: bool = ...) -> Any:
        """Sum a tensor over the ranks."""

    def reduce_scatter(self, output: Tensor, input: Tensor, *, async_op: bool = ...) -> Any:
        """Sum the input over the ranks, and leave rank r the r-th of its N equal parts."""

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = ...) -> Any:
        """Collect all ranks' inputs, in the order of ranks."""
