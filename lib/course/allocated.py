"""Bytes that tensors take while a function runs: told by torch's allocator, not by the tensors."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

CPU = 0  # of torch's device types


def allocated(function: Callable[[], Any]) -> tuple[Any, list[tuple[float, int]]]:
    """Run `function`; return its value, and (seconds, bytes) after each allocation on the CPU.

    Seconds count from the first change, bytes from the function's start: memory of its caller that
    it frees counts below zero. The last entry is what is still there, for the value's sake mostly.
    """
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        profiler.start()
    try:
        value = function()
    finally:
        with _quiet():
            profiler.stop()
    return value, _curve(profiler)


def _curve(profiler: profile) -> list[tuple[float, int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [event for event in events if event["name"] == "[memory]"]
    changes = [event for event in changes if event["args"]["Device Type"] == CPU]
    changes.sort(key=lambda event: event["args"]["Ev Idx"])
    curve, total = [], 0
    for event in changes:
        total += event["args"]["Bytes"]
        curve.append(((event["ts"] - changes[0]["ts"]) / 1e6, total))
    return curve


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what C++ says on stderr: the profiler reports there that it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
