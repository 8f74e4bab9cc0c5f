"""The machine that a figure was measured on, in words."""

import os
import platform
from pathlib import Path

import torch


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> str:
    """Processor, cores that we may use, operating system and versions."""
    return (
        f"{_processor()}, {cores()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
