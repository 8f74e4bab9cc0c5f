"""Points in a device's work: the host's own, or a CUDA stream's.

The host does its work when the program says so; a stream does it later. So on a GPU a point in time
is an event, queued in the stream behind the work before it. Work on another stream that must come
after it waits for the event there, and the host goes on.
"""

import time

import torch

Interval = tuple[float, float]  # start and end, in seconds of `time.monotonic()`


class StreamEvent:
    def __init__(self, device: torch.device) -> None:
        self._device, self._host = device, time.monotonic()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def query(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def block_current_stream(self) -> None:
        """Let what is queued from now on, on the device's current stream, run only after it."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)

    @property
    def seconds(self) -> float | None:
        if self._event is None:
            return self._host
        if not self.query():
            return None
        host, event = _anchors.get(self._device) or anchor(self._device)
        return host + float(event.elapsed_time(self._event)) / 1e3


def interval(start: StreamEvent | None, end: StreamEvent | None) -> Interval | None:
    if start is None or end is None:
        return None
    since, until = start.seconds, end.seconds
    return None if since is None or until is None else (since, until)


_anchors: dict[torch.device, tuple[float, torch.cuda.Event]] = {}


def anchor(device: torch.device) -> tuple[float, torch.cuda.Event]:
    """Record an event at a known time of the host, from which `StreamEvent.seconds` counts.

    Events only know how far apart they are, in milliseconds, as a 32-bit float: after an hour that
    is 0.2 ms at best. So a recording takes an anchor near the events that it reads.
    """
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    empty = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    event.record(empty)  # where nothing is queued before it
    event.synchronize()
    _anchors[device] = time.monotonic(), event
    return _anchors[device]
