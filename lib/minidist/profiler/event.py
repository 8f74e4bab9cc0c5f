"""Points in a device's work: the host's own, or a CUDA stream's.

The host does its work when it says so. A stream does it later: there a moment is an event, put into
the stream behind what was queued before, and who must not go on before it waits for it in turn, in
a stream of its own, without the host.
"""

from __future__ import annotations

import time

import torch


class Moment:
    """Now, in the order of the device's work: of `device`'s current stream, if it is a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._host = device, time.monotonic()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def reached(self) -> bool:
        """Whether the device has come to it."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def hold_back(self) -> None:
        """Let what is queued from now on, on the device's current stream, run only after it."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)

    @property
    def seconds(self) -> float | None:
        """When it was, as `time.monotonic()` tells; None while the device has not come to it."""
        if self._event is None:
            return self._host
        if not self.reached():
            return None
        host, event = _anchors.get(self._device) or anchor(self._device)
        return host + float(event.elapsed_time(self._event)) / 1e3


_anchors: dict[torch.device, tuple[float, torch.cuda.Event]] = {}


def anchor(device: torch.device) -> tuple[float, torch.cuda.Event]:
    """Take an event of which the host's time is known; `Moment.seconds` counts from the last one.

    Events only know how far apart they are, in milliseconds, as a 32-bit float: after an hour that
    is 0.2 ms at best. So who reads moments of interest takes an anchor near them.
    """
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    empty = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    event.record(empty)  # where nothing is queued before it
    event.synchronize()
    _anchors[device] = time.monotonic(), event
    return _anchors[device]
