"""Asynchronous calls: one thread for each group does its collectives, in the order of the calls.

Order is what makes collectives match up between ranks, so a synchronous call also waits its turn
behind asynchronous ones of the same group.

[Note: streams] On a GPU the thread only queues kernels, and what is queued on one stream runs one
after another: communication on the caller's stream would hold up the caller's kernels. So a group's
asynchronous collectives have a stream of their own. There they run after what was queued on the
caller's stream before the call, since that made the tensor; and what is queued after `wait()` runs
after them. In between both streams run at the same time. The host waits for the thread to have
queued the collective, never for the GPU.

[Note: held until done] Memory that is freed goes back to the stream where it was allocated, which
knows nothing of ours: it would be used again while a collective still reads it. So a collective's
tensors are held until `wait()`, or for a `Work` that nobody waits for, until the GPU has done it
and the group's next call comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary, ref

import torch
from torch.distributed import ProcessGroup

from minidist.profiler.event import Interval, StreamEvent, interval

Body = Callable[[], None]


class _Flight:
    """A body on its way, with all that it uses."""

    def __init__(self, body: Body, device: torch.device) -> None:
        self.body: Body | None = body
        self.called = StreamEvent(device)
        self.started: StreamEvent | None = None
        self.ended: StreamEvent | None = None


class Work:
    """A collective on its way."""

    _future: Future[None]
    _flight: _Flight

    def wait(self) -> bool:
        """Return True when the result is in place.

        On a GPU that is in the order of the device's current stream: see [Note: streams].

        Raises:
            Exception: what the collective raised.
        """
        try:
            self._future.result()
        finally:
            if self._flight.ended:
                self._flight.ended.block_current_stream()
            self._flight.body = None
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not; on a GPU, there."""
        ended = self._flight.ended
        return self._future.done() and (ended is None or ended.query())

    @property
    def span(self) -> Interval | None:
        """Its start and end, in seconds of `time.monotonic()`; None before it has ended.

        It starts when its turn comes. Waiting for the other ranks to come counts.
        """
        if not self.is_completed():
            return None
        return interval(self._flight.started, self._flight.ended)


class _Line:
    """The queue of one group."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minidist")
        self.last: ref[Future[None]] | None = None  # weak: a failure holds on to its group
        self.ended: StreamEvent | None = None  # the last one on a GPU
        self.held: deque[_Flight] = deque()  # [Note: held until done]; empty on the CPU
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def append(self, flight: _Flight, device: torch.device) -> Work:
        while self.held and (not self.held[0].body or _done(self.held[0])):
            self.held.popleft()
        if device.type == "cuda":
            self.held.append(flight)
        future = self.thread.submit(self._fly, flight, device)
        self.last = ref(future)
        work = Work()
        work._future, work._flight = future, flight
        return work

    def busy(self) -> bool:
        last = self.last() if self.last else None
        return last is not None and not last.done()

    def _fly(self, flight: _Flight, device: torch.device) -> None:
        with self._stream(device):  # [Note: streams]
            flight.called.block_current_stream()
            flight.started = StreamEvent(device)
            try:
                assert flight.body is not None
                flight.body()
            finally:
                flight.ended = StreamEvent(device)
                if device.type == "cuda":  # what the host has done, no stream has to wait for
                    self.ended = flight.ended

    def _stream(self, device: torch.device) -> AbstractContextManager[object]:
        if device.type != "cuda":
            return nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[device])


def _done(flight: _Flight) -> bool:
    return flight.ended is not None and flight.ended.query()


_lines: WeakKeyDictionary[ProcessGroup, _Line] = WeakKeyDictionary()


def in_order(group: ProcessGroup, body: Body, device: torch.device, async_op: bool) -> Work | None:
    """Call `body` after all earlier ones of the group: now, or in the group's thread."""
    line = _lines.get(group)
    if line is None:  # no setdefault: it would make an executor at every call
        line = _lines[group] = _Line()
    if not (async_op or line.busy()):
        if line.ended and device.type == "cuda":
            line.ended.block_current_stream()
        body()
        return None
    work = line.append(_Flight(body, device), device)
    if async_op:
        return work
    work.wait()
    return None
