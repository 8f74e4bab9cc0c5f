"""Spans: what ran when, on which lane of which rank; numbers computed from them, a file of them."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from minidist.profiler.event import Interval

COMPUTE, COMMUNICATION = "compute", "communication"


class Span(NamedTuple):
    """Something that ran on a lane of a rank, in seconds of `time.monotonic()`.

    That is one clock for all ranks of a host, but not for those of different hosts.
    """

    rank: int
    lane: str
    name: str
    start: float
    end: float


def rows(spans: Iterable[Span]) -> list[list[Span]]:
    """The lanes of all ranks, in order, each as its spans, which follow one another.

    A lane whose spans overlap has several rows.
    """
    lines: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        for row in lines:
            if row[-1][:2] == span[:2] and row[-1].end <= span.start:
                row.append(span)
                break
        else:
            lines.append([span])
    order = {COMPUTE: 0, COMMUNICATION: 1}
    return sorted(lines, key=lambda row: (row[0].rank, order.get(row[0].lane, 2), row[0].lane))


def hidden(spans: Iterable[Span]) -> float:
    """The share of communication time that overlaps with backward, over all ranks: 0 to 1.

    A rank communicates while at least one of its spans on the lane "communication" runs.
    """
    sent, covered = 0.0, 0.0
    spans = list(spans)
    for rank in {span.rank for span in spans}:
        own = [span for span in spans if span.rank == rank]
        communication = _union([s[-2:] for s in own if s.lane == COMMUNICATION])
        backward = _union([s[-2:] for s in own if (s.lane, s.name) == (COMPUTE, "backward")])
        sent += sum(end - start for start, end in communication)
        covered += sum(
            max(0.0, min(end, until) - max(start, since))
            for start, end in communication
            for since, until in backward
        )
    if not sent:
        raise ValueError(f"hidden: expected some communication among the {len(spans)} spans")
    return covered / sent


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def to_chrome(spans: Iterable[Span], path: str | os.PathLike[str]) -> None:
    """Write spans for chrome://tracing and https://ui.perfetto.dev: a process for each rank.

    The format is JSON of the *Trace Event Format* (Google, 2016): complete events, in microseconds
    since the first span; a thread for each of the rank's `rows`.
    """
    lines = rows(spans)
    first = min((row[0].start for row in lines), default=0.0)
    events: list[dict[str, Any]] = []
    for thread, row in enumerate(lines):
        rank, lane, *_ = row[0]
        place = {"pid": rank, "tid": thread}
        for kind, name in {"process_name": f"rank {rank}", "thread_name": lane}.items():
            events.append({"ph": "M", "name": kind, "args": {"name": name}, **place})
        for *_, name, start, end in row:
            times = {"ts": (start - first) * 1e6, "dur": (end - start) * 1e6}
            events.append({"ph": "X", "name": name, "cat": lane, **times, **place})
    aside = Path(f"{os.fspath(path)}.new")
    aside.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    aside.replace(path)
