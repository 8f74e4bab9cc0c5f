"""Asynchronous calls: one thread for each group does its collectives, in the order of the calls.

Order is what makes collectives match up between ranks, so a synchronous call also waits its turn
behind asynchronous ones of the same group.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from weakref import WeakKeyDictionary, ref

import torch
from torch.distributed import ProcessGroup


class Work:
    """A collective on its way."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> bool:
        """Return True when the result is in place.

        On a GPU that is in the order of the stream on which the collective was called.

        Raises:
            Exception: what the collective raised.
        """
        self._future.result()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()


class _Line:
    """The queue of one group."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minidist")
        self.last: ref[Future[None]] | None = None  # weak: a failure holds on to its group

    def append(self, body: Callable[[], None]) -> Work:
        future = self.thread.submit(body)
        self.last = ref(future)
        return Work(future)

    def busy(self) -> bool:
        last = self.last() if self.last else None
        return last is not None and not last.done()


_lines: WeakKeyDictionary[ProcessGroup, _Line] = WeakKeyDictionary()


def in_order(
    group: ProcessGroup, body: Callable[[], None], device: torch.device, async_op: bool
) -> Work | None:
    """Call `body` after all earlier ones of the group: now, or in the group's thread."""
    line = _lines.get(group)
    if line is None:  # no setdefault: it would make an executor at every call
        line = _lines[group] = _Line()
    if not (async_op or line.busy()):
        body()
        return None
    # The caller's stream is not the thread's: kernels must follow those that made the tensor.
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def on_stream() -> None:
        with torch.cuda.stream(stream) if stream else nullcontext():
            body()

    work = line.append(on_stream)
    if async_op:
        return work
    work.wait()
    return None
