"""Record what ran when on this rank: forward, backward, each bucket's all-reduce, optimizer.

For example::

    with minidist.timeline() as line:
        for inputs, targets in batches:
            ...
    figure = plots.gantt(line.spans)

Wrappers report what they do by `mark` and `note`. While nothing records, both return at once.

[Note: clocks] The host's times are read on the spot. A GPU works later: there a mark is two events
in the device's current stream. Nothing waits for them while recording; at its end the device is
synchronized once, and they are compared with an event whose time on the host is known. So all spans
of a rank are on one clock, and those of all ranks of a host too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from minidist.profiler.event import Interval, StreamEvent, anchor, interval
from minidist.profiler.spans import COMPUTE, Span

CPU = torch.device("cpu")


class Timed(Protocol):
    """Anything that knows when it ran, such as the handle of an asynchronous collective."""

    @property
    def span(self) -> Interval | None:
        """Start and end in seconds of `time.monotonic()`; None while it has not ended."""


class Mark:
    """Something that runs from now until the end of a `with` block, or until `end()`."""

    def __init__(self, device: torch.device | None) -> None:
        self._device, self._started = device, StreamEvent(device) if device else None
        self._ended: StreamEvent | None = None

    def end(self) -> None:
        if self._device and not self._ended:
            self._ended = StreamEvent(self._device)

    @property
    def span(self) -> Interval | None:
        return interval(self._started, self._ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


NOTHING = Mark(None)  # what `mark` returns while nothing records: it reads no clock


class Timeline:
    """A recording of one rank; `timeline()` makes it."""

    def __init__(self) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self._spans: list[Span] = []
        self.noted: list[tuple[str, str, Timed]] = []  # those whose span is not known yet
        self.gpus: set[torch.device] = set()
        self._step: tuple[Optimizer, Mark] | None = None

    @property
    def spans(self) -> list[Span]:
        """The spans that have ended so far, sorted by start; the list can be pickled."""
        waiting, self.noted = self.noted, []
        for lane, name, what in waiting:
            if times := what.span:
                self._spans.append(Span(self.rank, lane, name, *times))
            else:
                self.noted.append((lane, name, what))
        return sorted(self._spans, key=lambda span: span.start)

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._step is None or self._step[0] is optimizer:
            device = next((p.device for g in optimizer.param_groups for p in g["params"]), CPU)
            self._step = optimizer, mark("optimizer", COMPUTE, device)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._step and self._step[0] is optimizer:
            self._step[1].end()
            self._step = None


_current: Timeline | None = None


@contextmanager
def timeline() -> Iterator[Timeline]:
    """Record what wrappers and optimizers do inside the `with` block, on this rank.

    Its `spans` are on the lanes "compute" (forward, backward, optimizer) and "communication"
    (bucket 0, bucket 1, ...).
    """
    global _current
    if _current is not None:
        raise RuntimeError(f"rank {_current.rank}: timeline: another one is recording")
    _current = line = Timeline()
    hooks = [
        register_optimizer_step_pre_hook(line.before_step),
        register_optimizer_step_post_hook(line.after_step),
    ]
    try:
        yield line
    finally:
        _current = None
        for hook in hooks:
            hook.remove()
    for gpu in line.gpus:
        torch.cuda.synchronize(gpu)
        anchor(gpu)
    _ = line.spans  # read now: see [Note: clocks]


def mark(name: str, lane: str = COMPUTE, device: torch.device = CPU) -> Mark:
    """Record that something runs from now to the end of the `with` block, or to the mark's `end()`.

    On a GPU, the `device`, its current stream is timed.
    """
    if _current is None:
        return NOTHING
    if device.type == "cuda":
        _current.gpus.add(device)
    mark = Mark(device)
    note(name, lane, mark)
    return mark


def note(name: str, lane: str, what: Timed) -> None:
    """Record something that knows when it ran, such as the handle of a collective.

    Its `span` is read when the recording ends, or later while it is None.
    """
    if _current:
        _current.noted.append((lane, name, what))
