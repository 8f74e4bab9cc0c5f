"""Recordings: what is noted, what it costs when nothing records, what is made of it."""

import json
from pathlib import Path

import pytest
import torch

from minidist.profiler.spans import Span, hidden, rows, to_chrome
from minidist.profiler.timeline import NOTHING, mark, note, timeline

STEP = [
    Span(0, "compute", "forward", 10.0, 11.0),
    Span(0, "compute", "backward", 11.0, 14.0),
    Span(0, "communication", "bucket 0", 12.0, 13.0),
    Span(0, "communication", "bucket 1", 13.0, 15.0),
    Span(0, "compute", "optimizer", 15.0, 16.0),
]
SHIFTED = [Span(1, lane, name, start + 0.5, end + 0.5) for _, lane, name, start, end in STEP]


# ---- recording ----


def test_when_nothing_records_nothing_is_made_and_no_clock_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an event was recorded")

    monkeypatch.setattr("minidist.profiler.event.StreamEvent.__init__", fail)
    with mark("forward") as first:
        pass
    second = mark("bucket 0", "communication", torch.device("cuda:0"))
    second.end()
    note("bucket 0", "communication", second)
    assert first is second is NOTHING
    assert second.span is None


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)


def fails() -> float:
    raise ZeroDivisionError


def test_optimizers_are_watched_only_while_recording_also_after_a_step_that_raised() -> None:
    early = sgd()
    early.step()
    with timeline() as line:
        with pytest.raises(ZeroDivisionError):
            early.step(fails)
        with mark("between"):
            pass
        early.step()
        sgd().step()
    early.step()
    names = ["between", "optimizer", "optimizer"]
    assert [span[:3] for span in line.spans] == [(0, "compute", name) for name in names]


class Outer(torch.optim.SGD):
    """An optimizer that hands its work to another one."""

    def step(self, closure: object = None) -> None:
        sgd().step()
        with mark("the rest", "other"):
            pass


def test_a_step_within_a_step_is_part_of_it() -> None:
    with timeline() as line:
        Outer(torch.nn.Linear(2, 1).parameters(), lr=0.1).step()
        sgd().step()
    assert [span.name for span in line.spans] == ["optimizer", "the rest", "optimizer"]
    outer, rest, alone = line.spans
    assert outer.start <= rest.start <= rest.end <= outer.end <= alone.start


class Late:
    """A handle that knows its span only in the end."""

    span: tuple[float, float] | None = None


def test_marks_end_once_and_a_handle_is_asked_until_it_knows() -> None:
    handle = Late()
    with timeline() as line:
        outer, lost = mark("forward"), mark("backward")
        note("bucket 0", "communication", handle)
        with mark("inner", "other") as inner:
            assert line.spans == []
        outer.end()
        ended = outer.span
        outer.end()
    assert outer.span == ended
    assert lost.span is None
    (_, _, first, *of_outer), (_, lane, second, *of_inner) = line.spans
    assert (first, second, lane) == ("forward", "inner", "other")
    assert (tuple(of_outer), tuple(of_inner)) == (ended, inner.span)
    assert of_outer[0] <= of_inner[0] <= of_inner[1] <= of_outer[1]
    lost.end()
    assert [span.name for span in line.spans] == ["forward", "backward", "inner"]
    handle.span = 1.0, 2.0
    assert line.spans[0] == Span(0, "communication", "bucket 0", 1.0, 2.0)
    assert len(line.spans) == 4


def test_one_recording_at_a_time_and_a_failure_ends_it() -> None:
    with timeline() as line:
        with pytest.raises(RuntimeError, match="rank 0: timeline: another one is recording"):
            timeline().__enter__()
        with mark("forward"):
            pass
    assert [span.name for span in line.spans] == ["forward"]
    with pytest.raises(ZeroDivisionError), timeline() as line, mark("forward"):
        _ = 1 / 0
    assert mark("forward") is NOTHING
    sgd().step()
    assert [span.name for span in line.spans] == ["forward"]


# ---- on a GPU: a fake one, whose stream runs when it is synchronised ----


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self, stream: str) -> None:
        if stream == "empty":
            self.at = GPU.clock
        else:
            GPU.queue.append(self)

    def query(self) -> bool:
        return self.at is not None

    def synchronize(self) -> None:
        GPU.calls.append("anchor")
        assert self.at is not None, "only the anchor is waited for: its stream is empty"

    def elapsed_time(self, other: "Event") -> float:
        assert self.at is not None
        assert other.at is not None
        return (other.at - self.at) * 1e3


class Gpu:
    """Its clock is that of the host, plus a constant that nobody knows."""

    def __init__(self) -> None:
        self.clock, self.queue, self.calls = 0.0, list[Event](), list[str]()

    def run(self) -> None:
        for event in self.queue:
            self.clock += 1.0  # so long is what is queued before each event
            event.at = self.clock
        self.queue.clear()


GPU = Gpu()


def synchronize(device: torch.device) -> None:
    GPU.calls.append(f"synchronize {device}")
    GPU.run()


def test_on_a_gpu_events_are_recorded_and_read_once_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes = {
        "Event": Event,
        "Stream": lambda device: "empty",
        "current_stream": lambda device: f"usual of {device}",
        "synchronize": synchronize,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    cuda, stale = torch.device("cuda:0"), Event(enable_timing=True)
    stale.at = -3.0  # an anchor of long ago, since when the clocks have drifted
    monkeypatch.setattr("minidist.profiler.event._anchors", {cuda: (990.0, stale)})
    monkeypatch.setattr("time.monotonic", lambda: GPU.clock + 1000.0)
    with timeline() as line:
        with mark("forward", device=cuda):
            pass
        backward = mark("backward", device=cuda)
        with mark("input"):  # on the host
            pass
        backward.end()
        assert [span.name for span in line.spans] == ["input"], "the GPU has not run yet"
        assert GPU.calls == [], "nothing waits while recording"
    assert GPU.calls == ["synchronize cuda:0", "anchor"]
    assert line.spans == [
        Span(0, "compute", "input", 1000.0, 1000.0),
        Span(0, "compute", "forward", 1001.0, 1002.0),
        Span(0, "compute", "backward", 1003.0, 1004.0),
    ]
    assert GPU.calls == ["synchronize cuda:0", "anchor"], "the times are kept"


# ---- what is computed ----


def test_the_share_under_backward() -> None:
    for communication, backward, share in (
        ([(0, 2)], [], 0),
        ([(0, 1), (5, 7)], [(2, 6)], 1 / 3),  # the first long before backward
        ([(1, 3), (2, 5)], [(0, 2)], 1 / 4),  # two at a time count once
        ([(0, 8), (1, 2)], [(1, 2), (4, 6)], 3 / 8),
        ([(0, 4)], [(1, 3), (2, 3)], 1 / 2),
        ([(0, 1), (1, 2), (5, 7)], [(0, 6)], 3 / 4),
    ):
        spans = [Span(0, "communication", f"bucket {i}", *at) for i, at in enumerate(communication)]
        spans += [Span(0, "compute", "backward", *at) for at in backward]
        spans += [Span(0, "compute", "forward", 0, 9), Span(0, "input", "backward", 0, 9)]
        assert hidden(spans) == pytest.approx(share, abs=1e-15), (communication, backward)
        assert hidden(spans[::-1]) == hidden(iter(spans))


def test_only_the_rank_s_own_backward_hides_its_communication() -> None:
    own = [Span(0, "communication", "bucket 0", 0, 3), Span(0, "compute", "backward", 2, 9)]
    other = [Span(1, "communication", "bucket 0", 0, 1), Span(1, "compute", "backward", 0, 2)]
    assert hidden(own + other) == 0.5
    with pytest.raises(ValueError, match="some communication among the 1 spans"):
        hidden(own[1:])


def test_rows_are_lanes_in_order_and_split_where_spans_overlap() -> None:
    more = [Span(0, "input", "load", 9.0, 9.5), Span(0, "communication", "sums", 12.5, 14.5)]
    lines = rows([*SHIFTED, *more, *STEP[::-1]])
    assert [(*row[0][:2], [span.name for span in row]) for row in lines] == [
        (0, "compute", ["forward", "backward", "optimizer"]),
        (0, "communication", ["bucket 0", "bucket 1"]),
        (0, "communication", ["sums"]),
        (0, "input", ["load"]),
        (1, "compute", ["forward", "backward", "optimizer"]),
        (1, "communication", ["bucket 0", "bucket 1"]),
    ]


# ---- Chrome's format ----


def test_a_trace_has_a_process_for_each_rank_and_a_thread_for_each_row(tmp_path: Path) -> None:
    to_chrome([*SHIFTED, *STEP], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    lanes = ["compute", "communication"]
    wanted = {("thread_name", at // 2, at): lanes[at % 2] for at in range(4)}
    assert names == wanted | {("process_name", at // 2, at): f"rank {at // 2}" for at in range(4)}
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) + len(names) == len(events)
    back = []
    for e in drawn:
        start, lane = 10 + e["ts"] / 1e6, names["thread_name", e["pid"], e["tid"]]
        back.append(Span(e["pid"], lane, e["name"], start, start + e["dur"] / 1e6))
    assert sorted(back) == sorted([*STEP, *SHIFTED])
