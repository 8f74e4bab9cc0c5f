"""The machine that a figure was measured on, in words."""

import os
import platform
from pathlib import Path

import torch


def describe() -> str:
    """Processor, cores that we may use, operating system and versions."""
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{_processor()}, {ours or 1} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
