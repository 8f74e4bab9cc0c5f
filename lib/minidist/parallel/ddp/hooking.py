"""Communication hooks: what a bucket goes through instead of an all-reduce, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from minidist.collectives.call import Call, Run, collective
from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import Bucket, GradBucket
from minidist.profiler.spans import COMMUNICATION
from minidist.profiler.timeline import NOTHING, Mark, Timed, mark, note


class Waiting(Protocol):
    """What a hook returns at once, such as a `torch.futures.Future` or a `Handle`."""

    def wait(self) -> object:
        """Return the reduced buffer: 1-D, as many elements as the bucket's."""


class Done:
    """Nothing to wait for."""

    def wait(self) -> None:
        """Return at once."""


def check_hook(hook: object, before: object, comm: Comm) -> None:
    """Raise if a hook cannot be registered, or if the ranks register different ones.

    Args:
        hook: the new one.
        before: the one that there is.
        comm: between the ranks.
    """

    def prepare(call: Call) -> Run:
        call.agree_on("hook", _name(hook))
        if not callable(hook):
            raise TypeError(f"hook: expected a function of state and bucket, got {hook!r}")
        if before is not None:
            raise ValueError("hook: there is one already; wrap the module anew for another")
        return DONE.wait

    collective("register_comm_hook", comm.group, False, None, prepare)


DONE = Done()
Hook = Callable[[Any, GradBucket], Waiting]


def all_reduce(comm: Comm, bucket: Bucket, async_op: bool) -> Waiting:
    """What a bucket goes through without a hook; it is noted in the timeline."""
    name, buffer = f"bucket {bucket.index}", bucket.buffer
    if not async_op:
        with mark(name, COMMUNICATION, buffer.device):
            comm.all_reduce(buffer)
        return DONE
    handle = comm.all_reduce(buffer, async_op=True)
    assert handle is not None
    note(name, COMMUNICATION, handle)
    return handle


class Hooked:
    """What a bucket goes through instead: a user's hook.

    Args:
        state: what is passed to the hook with each bucket.
        hook: the user's.
    """

    def __init__(self, state: object, hook: Hook) -> None:
        self.state, self.hook = state, hook
        self.where = f"rank {dist.get_rank()}: communication hook {_name(hook)}"

    def __call__(self, comm: Comm, bucket: Bucket, async_op: bool) -> Waiting:
        """Start it on a bucket.

        Raises:
            TypeError: it returned nothing to wait for.
        """
        waiting = self.hook(self.state, GradBucket(bucket))
        if not hasattr(waiting, "wait"):
            raise TypeError(
                f"{self.where}: expected something with wait(), such as a torch.futures.Future, "
                f"got a {type(waiting).__name__}"
            )
        return HookedBucket(self, waiting, bucket)


class HookedBucket:
    """A bucket on its way through a hook."""

    def __init__(self, hooked: Hooked, waiting: Waiting, bucket: Bucket) -> None:
        self._where, self._waiting, self._bucket = hooked.where, waiting, bucket
        name = f"bucket {bucket.index}"
        self._mark: Mark = NOTHING
        if hasattr(waiting, "span"):
            note(name, COMMUNICATION, cast(Timed, waiting))
        else:
            self._mark = mark(name, COMMUNICATION, bucket.buffer.device)

    def wait(self) -> None:
        """Return when the result is in the bucket's buffer.

        Raises:
            TypeError, ValueError: the hook gave something else than a buffer of the bucket's size.
        """
        result, buffer = self._waiting.wait(), self._bucket.buffer
        self._mark.end()
        if not isinstance(result, torch.Tensor):
            raise TypeError(
                f"{self._where}: expected wait() to return the reduced buffer, got a "
                f"{type(result).__name__}"
            )
        if result.numel() != buffer.numel():
            raise ValueError(
                f"{self._where}: expected {buffer.numel()} elements for bucket "
                f"{self._bucket.index}, got {result.numel()}"
            )
        if result is not buffer:
            buffer.copy_(result.view(-1))


def _name(hook: object) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
