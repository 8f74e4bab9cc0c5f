"""The lesson: the ring, DDP, ZeRO and FSDP, each in one short file, on torch and a `Comm`.

`minidist.Ours()` and `minidist.Native()` are such a `Comm`. The files leave out what real use
needs; this is where `minidist` does it:

==================================================  ============================================
left out                                            done in
==================================================  ============================================
parameters of several dtypes, on several devices    `minidist.parallel.sharding.partition`
parameters that a rank does not use in a step       `parallel.ddp.reducer`, `parallel.fsdp.unit`
gradients that arrive in different order            `parallel.ddp.bucket`, `parallel.zero.bucket`
several backward passes for one step (`no_sync`)    `parallel.autograd.backward`
clipping, checkpoints of model and optimizer        `parallel.full_model`, `zero.state_dict`
mixed precision, a shard for each parameter         `parallel.fsdp.param_group`
activation checkpointing                            `parallel.fsdp.unit`
waiting for the last gradients automatically        `parallel.autograd.backward`
reporting where ranks disagree                      `comm.agreement`, `parallel.checks`
==================================================  ============================================
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Work(Protocol):
    """A collective on its way; `wait()` returns when its result is in place."""

    def wait(self) -> object: ...


class Comm(Protocol):
    """Four calls, made by every rank in the same order; with `async_op` they return a `Work`.

    They copy rank `group_src`'s tensor to all ranks; sum a tensor over the ranks; sum the input
    and leave rank r the r-th of N equal parts; and collect all inputs in the order of ranks.
    """

    rank: int
    ranks: int

    def broadcast(
        self, tensor: Tensor, group_src: int = ..., async_op: bool = ...
    ) -> Work | None: ...
    def all_reduce(self, tensor: Tensor, *, async_op: bool = ...) -> Work | None: ...
    def reduce_scatter(
        self, output: Tensor, input: Tensor, *, async_op: bool = ...
    ) -> Work | None: ...
    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = ...) -> Work | None: ...
