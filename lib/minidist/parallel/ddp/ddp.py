"""Distributed data parallel: every rank has a replica, and backward averages their gradients.

`Reducer` is DDP in five steps. `DistributedDataParallel`, below it, is the module that one wraps
round one's own: it decides which backward is averaged, and sees to all that is not the rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from minidist.comm.coalesced import Buffers, broadcast_coalesced
from minidist.comm.comm import Comm
from minidist.comm.replicas import same_model
from minidist.parallel.autograd.backward import Backward
from minidist.parallel.ddp.bucket import Bucket, arrival_order, build
from minidist.parallel.ddp.checks import (
    Unchanged,
    check_arguments,
    check_arrival,
    choose_comm,
    in_step,
)
from minidist.parallel.ddp.finite import Finite
from minidist.parallel.ddp.hooking import Hook, Hooked, Waiting, all_reduce, check_hook
from minidist.parallel.ddp.join import BACKWARD, FORWARD, WEIGH, Joining, join
from minidist.parallel.ddp.unused import Usage
from minidist.parallel.ddp.weights import weight_of
from minidist.parallel.ddp.wrapper import Wrapper
from minidist.parallel.sharding.partition import MIB, limits
from minidist.profiler.spans import COMPUTE
from minidist.profiler.timeline import mark


class Reducer:
    """Averages gradients over the ranks, bucket by bucket, while backward still makes others."""

    def __init__(self, module: nn.Module, comm: Comm, early: bool, as_view: bool) -> None:
        self.comm, self.early, self.as_view = comm, early, as_view
        self.hook: Hooked | None = None  # instead of an all-reduce
        broadcast_coalesced(chain(module.parameters(), module.buffers()), comm)  # 1. start alike

    def take(self, buckets: list[Bucket]) -> None:
        """Average these from now on."""
        self.buckets, self.flying = buckets, list[Waiting]()
        self.bucket_of = {p: bucket for bucket in buckets for p in bucket.parameters}

    def begin(self, weight: float = 1) -> None:
        """A backward begins: no gradient has arrived, no bucket is on its way."""
        self.left = deque(self.buckets)
        self.flying.clear()
        self.scale = weight if self.hook else weight / self.comm.ranks  # hooks divide themselves
        for bucket in self.buckets:
            bucket.arrived.clear()

    def arrived(self, parameter: Parameter) -> None:
        """2. Autograd has made a parameter's gradient. Send what is full, in one order."""
        self.bucket_of[parameter].arrived.add(parameter)
        while self.early and self.left and self.left[0].full:
            self.send()

    def send(self) -> None:
        """3. Copy the next bucket's gradients into its buffer, and sum that over the ranks."""
        bucket = self.left.popleft()
        bucket.pack(self.scale, self.as_view)
        self.flying.append((self.hook or all_reduce)(self.comm, bucket, self.early))

    def finish(self) -> None:
        """4. Backward is over: send the rest, and wait until all have come back."""
        while self.left:
            self.send()
        for bucket in self.flying:
            bucket.wait()

    def give_back(self, used: Container[Parameter] | None = None) -> None:
        """5. Give the parameters the means; all, or those that are `used`."""
        for bucket in self.buckets:
            bucket.unpack(self.as_view, used)


class DistributedDataParallel(Wrapper):
    """A module of which each rank has a replica, fed by its own share of the batch.

    As `torch.nn.parallel.DistributedDataParallel`: after `backward()` every rank has the mean of
    all ranks' gradients, the same bits. After Li et al., *PyTorch Distributed* (VLDB 2020), 3.2.

    Args:
        module: on one device. Rank 0's parameters and buffers are given to all. Its parameters
            must not be added, replaced, frozen or moved afterwards.
        process_group: the default group if None.
        bucket_cap_mb, first_bucket_mb: MiB that close a bucket, and the first one.
        broadcast_buffers: give rank 0's buffers to all before each forward outside `no_sync` (in
            PyTorch: before the first since the last step); under `no_grad` before the first.
        find_unused_parameters: backward may leave out parameters, also different ones on different
            ranks; there they count as zeros. Those that no rank used keep the gradients they had.
        gradient_as_bucket_view: gradients are views of the buckets, so their memory is held once.
        sync: "naive", a bucket for each parameter; "flat", one for all of a dtype; "bucketed", of
            `bucket_cap_mb`: these three are sent when backward is over. "overlapped": of
            `bucket_cap_mb`, each sent as soon as it is full and all before it have been. After the
            first step they are built anew, in the order in which rank 0's gradients arrived.
        comm: what the ranks talk through; `Ours(process_group)` if None.
        check_gradients: raise on all ranks if a gradient is not finite, naming rank and parameter.

    Attributes:
        steps: how many backwards have been averaged.

    Raises:
        TypeError, ValueError: of this rank's arguments or module; it names the rank.
        MismatchError: the models differ, or (where checks are on) the arguments do.
        RuntimeError: of a module that was changed, a parameter that got no gradient or a second
            one, and after a backward that raised: by forward or backward.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float = 25,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        *,
        sync: str = "overlapped",
        first_bucket_mb: float = 1,
        comm: Comm | None = None,
        check_gradients: bool = False,
    ) -> None:
        super().__init__(module)
        self.comm = choose_comm(process_group, comm)
        sizes = {"bucket_cap_mb": bucket_cap_mb, "first_bucket_mb": first_bucket_mb}
        flags = broadcast_buffers, find_unused_parameters, check_gradients
        check_arguments(module, self.comm, sync, sizes, flags)
        same_model(module, self.comm)
        self._named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._limits = limits(sync, first_bucket_mb * MIB, bucket_cap_mb * MIB)
        self._rebuilt = sync != "overlapped"
        self._reducer = Reducer(module, self.comm, not self._rebuilt, gradient_as_bucket_view)
        self._reducer.take(build(self._named, *self._limits))
        self._backward = Backward(self._reducer.bucket_of, self)
        self._shared = Buffers(module, self.comm, broadcast_buffers)
        self._usage = Usage(self._named, self.comm, find_unused_parameters)
        self._finite = Finite(self._named, self.comm, check_gradients)
        self._unchanged, self._forwards, self.steps = Unchanged(module), 0, 0
        self.weight = 1.0  # of this rank's gradients in the next mean over the ranks
        self.joining: Joining | None = None
        self.broadcast_buffers, self._device = broadcast_buffers, self._named[0][1].device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's share of the batch."""
        self._backward.check()
        self._unchanged.check()
        sync = self.synchronising and torch.is_grad_enabled()
        self._forwards += sync and not self.joining  # there, each rank has its own number
        if self.synchronising and self._shared.wanted:
            self._shared.broadcast(self._meet(FORWARD))
        with mark("forward", COMPUTE, self._device):
            output = self.module(*inputs, **kwargs)
        if torch.is_grad_enabled():
            self._shared.due = True
            self._backward.expect(output, sync)
        return output

    join = join

    def weigh(self, samples: float) -> None:
        """Let this rank's gradients count for `samples` in the next backward that is averaged.

        For shards of different sizes, on which each rank's loss is a mean: the gradients become
        those of the mean over all samples. Every rank must call it, before each such backward. It
        raises ValueError if samples is no number from 0 on, or 0 on all ranks.
        """
        if self.joining:
            self.joining.announce(WEIGH)
        self.weight = weight_of(samples, self.comm)

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Send buckets by `hook(state, bucket)` instead of an all-reduce, as with PyTorch's.

        Args:
            state: whatever the hook wants.
            hook: called with a `GradBucket` of this rank's gradients, not yet divided by the number
                of ranks; returns at once something whose `wait()` returns their means.

        It raises TypeError if the hook cannot be called, ValueError if there is one already.
        """
        check_hook(hook, self._reducer.hook, self.comm)
        self._reducer.hook = Hooked(state, hook)

    @property
    def buckets(self) -> list[Bucket]:
        """In the order in which they leave."""
        return self._reducer.buckets

    @property
    def arrivals(self) -> list[str]:
        """Names of parameters in the order in which their gradients came in the last backward."""
        names = {parameter: name for name, parameter in self._named}
        return [names[parameter] for parameter in self._backward.arrivals]

    def _meet(self, what: str) -> int:
        """All ranks come here, or have run out; returns the group's rank whose buffers count."""
        if self.joining:
            return self.joining.announce(what)
        in_step(f"{what} after {self._forwards} forwards, {self.steps} backwards", self.comm)
        return 0

    @torch.no_grad()
    def backward_begins(self, sync: bool) -> None:
        """Autograd has made the first gradient."""
        if sync:
            self._meet(BACKWARD)
            self._prepare()

    def _prepare(self) -> None:
        if self.steps and not self._rebuilt:
            order = arrival_order(self.comm, self._named, self._backward.arrivals)
            self._reducer.take([])  # let go of the old ones before there are new ones
            self._reducer.take(build(order, *self._limits))
            self._rebuilt = True
        self._reducer.begin(self.weight)

    @torch.no_grad()
    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        """Autograd has made the gradient of a parameter."""
        bucket = self._reducer.bucket_of[parameter]
        check_arrival(parameter, bucket, sync and bucket.index < len(self._reducer.flying))
        self._usage.note(parameter)
        self._finite.look(parameter)
        if sync:
            self._reducer.arrived(parameter)
        elif self._reducer.as_view:
            bucket.put(parameter, 1, as_view=True)  # and add up there

    @torch.no_grad()
    def backward_ends(self, sync: bool) -> None:
        """Autograd has made all gradients."""
        if sync:
            self._usage.check()
            self._average()
        else:
            self._backward.close()

    def _average(self, shadow: bool = False) -> None:
        self._reducer.finish()
        used = self._usage.of_all_ranks()
        self._reducer.give_back(set() if shadow else used)
        self._backward.close()
        self.steps, self.weight = self.steps + 1, 1.0
        self._finite.check(self.buckets, self.steps)

    @torch.no_grad()
    def shadow_backward(self) -> None:
        """Take part in a backward of the other ranks as one that counts for nothing."""
        self.weight = 0.0
        self._prepare()
        self._average(shadow=True)
