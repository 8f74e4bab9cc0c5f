"""ZeRO, stages 1 and 2: rank r steps on the r-th slice of the parameters, and on no other.

DDP all-reduces the gradients, and then every rank makes the same step. An all-reduce is a
reduce-scatter and an all-gather; ZeRO steps between the two, and gathers parameters::

    2 ranks, a bucket of 4 elements        rank 0         rank 1
    gradients, this rank's own             a b c d        e f g h
    reduce-scatter: their mean             A B . .        . . C D
    the inner optimizer's step             w x . .        . . y z
    all-gather: the parameters             w x y z        w x y z

After Rajbhandari et al., *ZeRO* (2020), sections 5.1, 5.2 and 7.
"""

from collections import deque
from collections.abc import Callable
from weakref import finalize

import torch
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.comm import Comm, Handle, noted, on_some_rank
from minidist.parallel.autograd.backward import BackwardPass
from minidist.parallel.zero.bucket import ShardedBucket


class Slices:
    """A training step whose optimizer state is sharded: by rank, in each bucket.

    Args:
        stage: 1: gradients are reduced in the step; 2: during backward.
        averaged: DDP puts the mean of all ranks' gradients into `parameter.grad`.
        agree: called before gradients are reduced; raises unless all ranks are about to.
        on_gradient: autograd's hook for each parameter in stage 2; it leads to `gradient_ready`.
    """

    def __init__(
        self,
        comm: Comm,
        buckets: list[ShardedBucket],
        stage: int,
        averaged: bool,
        agree: Callable[[], object],
        on_gradient: Callable[[Parameter], None],
    ) -> None:
        self.comm, self.averaged, self.agree = comm, averaged, agree
        self.buckets = buckets  # they travel in this order
        self.bucket_of = {each: bucket for bucket in buckets for each in bucket.parameters}
        self.sync = True  # or backward leaves gradients where they are, for a later one
        self.backward = BackwardPass()
        self._pending: deque[ShardedBucket] = deque()  # this backward's buckets still to send
        self._in_flight: tuple[ShardedBucket, Handle, torch.Tensor] | None = None
        self._reduced = False  # True if gradients were, since the last step
        self._unused_dropped = False  # True if they were, since that reduction
        self._hooks: list[finalize[[], Slices]] = []
        for parameter in self.bucket_of:
            if stage == 2 and parameter.requires_grad:  # called once its gradient is accumulated
                handle = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
                self._hooks.append(finalize(self, handle.remove))  # parameters may outlive us

    def step(self, inner: Optimizer) -> None:
        self.average_gradients()  # unless the user, to clip them, has done so already
        inner.step()  # updates this rank's shards, so it keeps 1/N of the state
        gathers = []
        for index, bucket in enumerate(self.buckets):
            if bucket.trains:
                handle = self.comm.all_gather(bucket.buffer, bucket.shard, async_op=True)
                gathers.append(noted(f"all-gather {index}", handle))
        for handle in gathers:
            handle.wait()
        for bucket in self.buckets:
            increment_version(bucket.parameters)  # written through the buffer, unseen by autograd
            bucket.stepped = not self.averaged
            if self.averaged:
                bucket.zero_grad()
        self._reduced = False

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Give each shard its part of the mean gradient, if it does not have it yet."""
        if self.averaged:
            for bucket in self.buckets:
                bucket.assign_averaged()
            return
        training = [bucket for bucket in self.buckets if bucket.trains]
        left = any(each.grad is not None for bucket in training for each in bucket.parameters)
        if left or not self._reduced:  # stage 1; gradients of no_sync; a rank without a backward
            self.prepare()
            self.finish()
        if not self._unused_dropped:
            self._drop_unused()

    def remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop()()

    @torch.no_grad()
    def gradient_ready(self, parameter: Parameter) -> None:
        """Backward has made a gradient: pack it, and reduce the buckets that are full."""
        if not self.sync:
            return
        if not self.backward.under_way:
            self.prepare()
            self.backward.begin(self.finish, parameter.device)
        bucket = self.bucket_of[parameter]
        if bucket not in self._pending:  # it has left; a reentrant checkpoint's second gradient
            return  # waits for the step
        bucket.pack(parameter, 1 / self.comm.ranks)  # copy it to the flat gradients, and free it
        while self._pending and not self._pending[0].expected:  # in one order on all ranks
            self.reduce_scatter(self._pending.popleft())

    def prepare(self) -> None:
        self.agree()
        self._pending = deque(bucket for bucket in self.buckets if bucket.trains)
        for bucket in self.buckets:
            bucket.expect_gradients()

    def reduce_scatter(self, bucket: ShardedBucket) -> None:
        """Reduce a bucket; keep this rank's slice of the one before, and free the rest of it."""
        flat_grad = bucket.finish_packing(1 / self.comm.ranks)
        mean = flat_grad.new_empty(bucket.flat.shard_numel)
        what = f"reduce-scatter {self.buckets.index(bucket)}"
        handle = noted(what, self.comm.reduce_scatter(mean, flat_grad, async_op=True))
        del flat_grad
        self._wait()  # so that at most two buckets' flat gradients are held
        self._in_flight = bucket, handle, mean

    def _wait(self) -> None:
        if self._in_flight is not None:
            bucket, handle, mean = self._in_flight
            handle.wait()
            bucket.add_mean(mean)
            self._in_flight = None

    @torch.no_grad()
    def finish(self) -> None:
        """Reduce what is left, with zeros for gradients that did not come; wait for the last."""
        self.backward.mark.end()
        while self._pending:
            self.reduce_scatter(self._pending.popleft())
        self._wait()
        self._reduced, self._unused_dropped = True, False

    def _drop_unused(self) -> None:
        """Leave parameters that no rank has used without a gradient, so without decay too."""
        here = [each in bucket.used for bucket in self.buckets for each in bucket.parameters]
        shards = [shard for bucket in self.buckets for shard in bucket.shards]
        used = on_some_rank(here, self.buckets[0].buffer.device, self.comm)
        for shard, flag in zip(shards, used, strict=True):
            if not flag:
                shard.grad = None
        self._unused_dropped = True
