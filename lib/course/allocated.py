"""Bytes that tensors take while a function runs: told by torch's allocator, not by the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidist.curve import measured


def allocated(function: Callable[[], Any]) -> tuple[Any, list[tuple[float, int]]]:
    """Run `function`; return its value, and (seconds, bytes) after each allocation on the CPU.

    Both count from the function's start: memory of its caller that it frees counts below zero. The
    last entry is what is still there, for the value's sake mostly.
    """
    curve = measured(function)
    return curve.value, curve.points
