"""The lesson: the ring, DDP, ZeRO and FSDP, each whole in one short file.

Nothing here but torch and a `Comm`: this rank's number, how many ranks there are, and four calls.
`minidist.Ours()` and `minidist.Native()` are such a `Comm`.

What real use needs and these files leave out, and where `minidist` does it:

==================================================  ============================================
left out                                            done in
==================================================  ============================================
parameters of several dtypes, on several devices    `minidist.parallel.sharding.partition`
parameters that a rank does not use in a step       `parallel.ddp.unused`, `parallel.fsdp.unit`
gradients that come in another order on each rank   `parallel.ddp.bucket`, `parallel.zero.bucket`
several backward passes for one step (`no_sync`)    `parallel.autograd.backward`
clipping, checkpoints of model and optimizer        `parallel.full_model`, `zero.state_dict`
mixed precision, a shard for each parameter         `parallel.fsdp.param_group`
activation checkpointing                            `parallel.fsdp.unit`
waiting for the last gradients without being told   `parallel.autograd.backward_pass`
finding out that ranks disagree, and how            `comm.agreement`, `parallel.checks`
==================================================  ============================================
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Work(Protocol):
    """A collective on its way."""

    def wait(self) -> object:
        """Return when its result is in place."""


class Comm(Protocol):
    """The four calls, made by every rank in the same order.

    With `async_op` a call returns a `Work` at once, without it None when the result is in place.
    """

    rank: int
    ranks: int

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Work | None:
        """Copy rank `group_src`'s tensor into every rank's."""

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Work | None:
        """Sum the tensor over the ranks, in place."""

    def reduce_scatter(
        self, output: Tensor, input: Tensor, *, async_op: bool = False
    ) -> Work | None:
        """Sum the input over the ranks; rank r keeps the r-th of its equal parts in `output`."""

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Work | None:
        """Put every rank's input into `output`, in the order of ranks."""
