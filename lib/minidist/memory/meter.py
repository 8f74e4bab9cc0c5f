"""Memory, byte by byte over a step: read from the allocator, not from tensors.

For example::

    meter = Meter()          # counts what is allocated from here on
    model = ...              # and trains for a step or two, until all of the state is there
    curve = meter.curve(step)
    curve.start, curve.peak, curve.end

[Note: other threads] On the CPU torch's profiler reports what its own thread allocates and frees,
and with each report the allocator's total for the process, which only counts threads that are
profiled. But collectives run in a thread of their own, which takes buffers and may be the last to
hold a tensor. A private flag of torch's C++ library makes the allocator count in all threads. So
each total that we see is right; what another thread takes and frees between two of our reports is
not seen. The flag stays set: what is freed while nobody counts would be missing for good.

`MemTracker` of torch.distributed, a dispatch mode, needs no flag. But a mode belongs to one thread,
and does not see a storage that is resized: on FSDP it misses 8 to 15 percent of a step's memory.

On a GPU the caching allocator itself keeps how much was requested, by all threads, and the most.
"""

import ctypes
import gc
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from minidist.errors import checked
from minidist.profiler.spans import Span
from minidist.profiler.timeline import CPU, timeline

PRIVATE_FLAG = "FLAGS_caffe2_report_cpu_memory_usage"
CPU_TYPE = 0  # the CPU's number among torch's device types
PROBES = 5
Points = list[tuple[float, int]]  # (seconds, bytes), after each change that was seen


class Curve(NamedTuple):
    """Memory over a step, from its start on; on a GPU only the start, the peak and the end."""

    points: Points
    spans: list[Span]  # what ran when, in the same seconds: see `minidist.timeline`
    value: Any = None  # what the step returned
    device: torch.device = CPU

    @property
    def start(self) -> int:
        """The bytes held before the step."""
        return self.points[0][1]

    @property
    def peak(self) -> int:
        """The most bytes held at any time."""
        return max(nbytes for _, nbytes in self.points)

    @property
    def end(self) -> int:
        """The bytes held after the step."""
        return self.points[-1][1]

    def during(self, name: str) -> int:
        """The most bytes while a span of this name ran, such as "forward"; on the CPU alone."""
        if self.device.type != "cpu":
            raise ValueError(f"during: on {self.device} only the peak of the whole step is known")
        spans = [span for span in self.spans if span.name == name]
        if not spans:
            known = ", ".join(dict.fromkeys(span.name for span in self.spans)) or "nothing"
            raise ValueError(f"during: expected one of what was recorded, {known}; got {name!r}")
        until = [when for when, _ in self.points[1:]] + [math.inf]  # a level lasts to the next one
        return max(
            nbytes
            for (when, nbytes), last in zip(self.points, until, strict=True)
            for span in spans
            if when <= span.end and span.start < last
        )


class Meter:
    """Counts the memory that is allocated on a device from now on, by all threads of the process.

    On the CPU minidist's messages take a few MiB once, and keep them: talk once before, to leave
    that out. Memory that ranks share does not come from torch and is not counted.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device
        gc.collect()  # garbage would be freed while we measure
        if device.type != "cuda":
            set_private_flag_to_count_all_threads()
        self._base = 0
        self._base = self.now()

    def now(self) -> int:
        if self._device.type == "cuda":
            return _requested(self._device) - self._base
        points, _ = _cpu_history(_probe)
        return points[-1][1] - self._base

    def curve(self, step: Callable[[], Any]) -> Curve:
        """Run `step`, and record how memory goes up and down.

        In it `timeline` records: spans of wrappers and optimizers, and what `mark` says.
        """
        with timeline() as line:
            on_gpu = self._device.type == "cuda"
            points, value = _cuda_history(step, self._device) if on_gpu else _cpu_history(step)
        zero = points[0][0]
        spans = [s._replace(start=s.start - zero, end=s.end - zero) for s in line.spans]
        levels = [(when - zero, nbytes - self._base) for when, nbytes in points]
        return Curve(levels, spans, value, self._device)


@checked
def measured(step: Callable[[], Any], device: torch.device = CPU) -> Curve:
    """Run `step`, and record what it takes beyond what was there: a curve that starts at 0."""
    return Meter(device).curve(step)


def _cpu_history(step: Callable[[], Any]) -> tuple[Points, Any]:
    """(Seconds of `time.monotonic()`, bytes that all threads hold), and what the step returned."""
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        profiler.start()
    probed = []
    try:
        for _ in range(PROBES):  # the total before the step, and the profiler's clock
            _probe()
            probed.append(time.monotonic())
        value = step()
        _probe()  # what other threads did last
    finally:
        with _quiet():
            profiler.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [event["args"] | event for event in events if event["name"] == "[memory]"]
    changes = [event for event in memory if event["Device Type"] == CPU_TYPE]
    changes.sort(key=lambda event: (event["ts"], event["Ev Idx"]))  # threads have numbers apart
    frees = changes[1 : 2 * PROBES : 2]
    zero = min(now - free["ts"] / 1e6 for now, free in zip(probed, frees, strict=True))
    points = [(zero + e["ts"] / 1e6, e["Total Allocated"]) for e in changes]
    return [*points[2 * PROBES - 1 : -2], points[-1]], value  # without what the probes took


def _probe() -> None:
    """Allocate a byte and free it: the second report's total is what all others hold."""
    torch.empty(1, dtype=torch.uint8, device="cpu")


def _cuda_history(step: Callable[[], Any], device: torch.device) -> tuple[Points, Any]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = time.monotonic(), _requested(device)
    value = step()
    torch.cuda.synchronize(device)
    peak, end = _requested(device, "peak"), _requested(device)
    return [start, (time.monotonic(), peak), (time.monotonic(), end)], value


def _requested(device: torch.device, what: str = "current") -> int:
    return int(torch.cuda.memory_stats(device).get(f"requested_bytes.all.{what}", 0))


def set_private_flag_to_count_all_threads() -> None:
    """Set the flag of [Note: other threads], a global variable of c10/core/CPUAllocator.h."""
    (path,) = (Path(torch.__file__).parent / "lib").glob("libc10.*")
    flag = ctypes.c_bool.in_dll(ctypes.CDLL(str(path)), PRIVATE_FLAG)
    if not flag.value:
        unknown = torch.empty(1, device="cpu")
        flag.value = True
        with _quiet():
            del unknown  # the first block that it did not count is announced; later ones are not


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what C++ writes to stderr: the profiler reports there that it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
