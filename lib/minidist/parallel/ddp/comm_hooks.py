"""Communication hooks: what goes over the wire in place of a bucket of gradients.

For example::

    model = minidist.DistributedDataParallel(net)
    model.register_comm_hook(Ours(), comm_hooks.bf16_compress)

A hook is called with a state and a bucket when the bucket is full. It starts the communication and
returns a handle, whose `wait()` returns the buffer of averaged gradients. Buckets come unscaled: a
hook also divides by the number of ranks.

[Note: divide, then cast] Three orders give the same average in exact arithmetic. To sum and divide
last overflows in float16 when N gradients add up to more than 65,504, though none is larger: an
infinity, which the optimizer puts into the weights for good. To divide first makes zero of what is
smaller than 3e-8 N, and that is next to nothing: so all hooks divide first. To cast before dividing
(torch's own hooks) rounds twice, and overflows where a gradient is beyond 65,504 and its N-th part
is not. bfloat16 overflows only where float32 does, but has 8 bits of precision, float16 has 11.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import Bucket

Hook = Callable[[Any, Bucket], Any]  # it returns a handle


class Reduced:
    """A sum of `tensor` over the ranks, in place and in flight, and how to finish it."""

    def __init__(
        self, comm: Comm, tensor: torch.Tensor, finish: Callable[[], torch.Tensor]
    ) -> None:
        work = comm.all_reduce(tensor, async_op=True)
        assert work is not None
        self._work, self._finish = work, finish

    def wait(self) -> torch.Tensor:
        """Return the averaged gradients when they are there; call it once."""
        self._work.wait()
        return self._finish()

    @property
    def span(self) -> tuple[float, float] | None:
        """Start and end of the communication, in seconds of `time.monotonic()`, once it is done."""
        return self._work.span


def all_reduce(comm: Comm, bucket: Bucket) -> Reduced:
    """Average the gradients, as without a hook; `comm`, between the ranks, is the hook's state."""
    buffer = bucket.buffer()
    return Reduced(comm, buffer.div_(comm.ranks), lambda: buffer)


def fp16_compress(comm: Comm, bucket: Bucket) -> Reduced:
    """Average the gradients in float16: half the bytes of float32. See [Note: divide, then cast].

    Gradients that have 16 bits already are averaged as they are.
    """
    return _compress(comm, bucket, torch.float16)


def bf16_compress(comm: Comm, bucket: Bucket) -> Reduced:
    """Average the gradients in bfloat16; all else as `fp16_compress`."""
    return _compress(comm, bucket, torch.bfloat16)


def _compress(comm: Comm, bucket: Bucket, dtype: torch.dtype) -> Reduced:
    buffer = bucket.buffer()
    if buffer.element_size() <= dtype.itemsize:
        return all_reduce(comm, bucket)
    small = torch.empty_like(buffer, dtype=dtype)
    torch.div(buffer, comm.ranks, out=small)  # [Note: divide, then cast]
    return Reduced(comm, small, lambda: buffer.copy_(small))


class HookCall:
    def __init__(self, state: object, hook: Hook, bucket: Bucket) -> None:
        self.bucket, self.name = bucket, name_of(hook)
        self.waiting = hook(state, bucket)

    @property
    def span(self) -> tuple[float, float] | None:
        return getattr(self.waiting, "span", None)

    def wait(self) -> None:
        flat = self.bucket.flat
        result = self.waiting.wait() if hasattr(self.waiting, "wait") else None
        if not (isinstance(result, torch.Tensor) and result.numel() == flat.numel()):
            raise ValueError(
                f"rank {dist.get_rank()}: communication hook {self.name}: expected a handle whose "
                f"wait() returns the {flat.numel()} elements of bucket {self.bucket.index()}, got "
                f"{getattr(result, 'shape', result)!r}"
            )
        if result is not flat:
            flat.copy_(result.view(-1))
        self.bucket.set_buffer(flat)


def name_of(hook: object) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
