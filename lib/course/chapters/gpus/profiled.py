"""A step seen by torch.profiler, as the spans that `plots.gantt` draws."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch.distributed as dist

from minidist.profiler.spans import COMMUNICATION, COMPUTE, Span

if TYPE_CHECKING:
    from torch.profiler import profile

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # or the profiler reports that it starts
PHASES = ("forward", "backward", "optimizer")


def profiled_spans(prof: profile) -> list[Span]:
    """The phases that `record_function` named, and Gloo's all-reduces as buckets, in order.

    Each rank counts from the start of its own profile, so start it behind a barrier.
    """
    rank = dist.get_rank()
    seen = prof.events() or []  # type: ignore[no-untyped-call]
    events = sorted(seen, key=lambda event: event.time_range.start)
    times = [(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in events]
    found = [Span(rank, COMPUTE, name, a, b) for name, a, b in times if name in PHASES]
    buckets = [(a, b) for name, a, b in times if name == "gloo:all_reduce"]
    return found + [Span(rank, COMMUNICATION, f"bucket {i}", *b) for i, b in enumerate(buckets)]
