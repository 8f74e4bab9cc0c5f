"""Checks that only GPUs can fail, on ranks of the CPU and with fakes: what is wrong is found."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from benchmarks.checks import collectives as correct
from benchmarks.checks import copy_bandwidth, multi_gpu, stream_order
from benchmarks.harness import turns
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup, on_gpus

TWO = Setup(2)
SMALL = replace(on_gpus(1), message_bytes=(4096, 1 << 16))


def test_collectives_of_two_groups_in_turn_are_checked_small() -> None:
    small = replace(SMALL, setups=(Setup(4),))
    rows = {row["review"]: row for row in multi_gpu.measure(small, Clock(600))}
    assert rows[7]["right"]


def test_a_wrong_check_or_one_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(setup: Setup, on_rank: Callable[..., Row], *_: Any, timeout: float) -> list[Row]:
        if on_rank in (multi_gpu.batched_ring, multi_gpu.unbatched_ring):
            raise minidist.RankError("ranks 0, 1 did not end\nmore", [0, 1])
        return [{"right": True}, {"right": on_rank is not multi_gpu.one_context}]

    monkeypatch.setattr(Setup, "launch", fails)
    rows: list[Row] = []
    gpus = replace(SMALL, setups=(Setup(4, "cuda"),))
    with pytest.raises(AssertionError, match="wrong: 6 a batched ring ends, 8 each process"):
        rows.extend(multi_gpu.measure(gpus, Clock(600)))
    assert {row.get("error") for row in rows} == {None, "ranks 0, 1 did not end"}


# Correctness: what is wrong is found


def forgets_a_rank(tensor: torch.Tensor, async_op: bool = False) -> Any:
    before = tensor.clone()
    work = minidist.all_reduce(tensor, async_op=async_op)
    if dist.get_rank() == 1:
        if work:
            work.wait()
        tensor.sub_(before)
    return work


def writes_beside(tensor: torch.Tensor, async_op: bool = False) -> Any:
    if tensor.stride() != (1,) and tensor.numel():
        tensor.as_strided((1,), (1,), tensor.storage_offset() + 1).zero_()
    return minidist.all_reduce(tensor, async_op=async_op)


def refuses(tensor: torch.Tensor, async_op: bool = False) -> Any:
    if async_op:
        raise ValueError("not asynchronously")
    return minidist.all_reduce(tensor)


def test_a_wrong_collective_fails_the_section() -> None:
    calls: dict[str, Callable[..., Any]] = {
        "all_reduce": forgets_a_rank,
        "all_reduce, strange": writes_beside,
        "all_reduce, refused": refuses,
    }
    problems = [
        "rank 1: torch.float32 x 1",
        "rank 0: torch.float32 x 1, strided",
        "rank 0: torch.float32 x 0, async: ValueError: not asynchronously",
    ]
    rows: list[Row] = []
    with pytest.raises(AssertionError, match="wrong, such as all_reduce, rank 1: torch"):
        rows.extend(correct.compare(TWO, calls, 4096, Clock(60)))
    for row, problem in zip(rows, problems, strict=True):
        assert row["wrong"][0].startswith(problem)
        assert len(row["wrong"]) <= correct.SHOWN


# Order of the stream


def test_a_call_that_does_not_see_what_was_queued_before_it_fails_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"call": "synchronous", "right": True, "back_while_stream_is_busy": True, "call_ms": 1.0}
    of_ranks = [[row], [{**row, "right": False, "call_ms": 9.0}]]
    monkeypatch.setattr(Setup, "launch", lambda *_, **__: of_ranks)
    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="does not show what was queued before"):
        rows.extend(stream_order.measure(Scope((TWO,)), Clock(60)))
    (row,) = rows
    assert (row["right"], row["call_ms"]) == (False, 9.0), "of all ranks the worst"


# GPUs that are not there


def test_setups_are_a_rank_for_each_gpu_and_ranks_that_share_one() -> None:
    assert on_gpus(1).setups == (Setup(1, "cuda"), Setup(2, "cuda", True), Setup(4, "cuda", True))
    assert [setup.ranks for setup in on_gpus(16).setups] == [1, 8, 2, 4]


def test_ranks_that_share_a_gpu_are_shown_one_and_the_environment_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    during = []

    def launch(fn: Callable[..., Any], ranks: int, *args: Any, **options: Any) -> list[Any]:
        during.append((os.environ.get("CUDA_VISIBLE_DEVICES"), ranks, options["device"]))
        raise KeyError

    monkeypatch.setattr(minidist, "launch", launch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for seen, shown in ((None, "0"), ("3,5", "3")):
        if seen:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        for setup in (Setup(2, "cuda", shared=True), Setup(2, "cuda")):
            with pytest.raises(KeyError):
                setup.launch(copy_bandwidth.copies, 1, timeout=1)
            assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
        assert during[-2:] == [(shown, 2, "cuda"), (seen, 2, "cuda")]


def test_times_on_a_gpu_are_those_of_events_and_the_host_waits_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = len(log)
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return 1e3 * (end.at - self.at)  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(minidist, "device", lambda: torch.device("cuda:0"))
    assert turns.interval(lambda: log.append("call"), 3) == (0.0, pytest.approx(4))
    assert log == ["event", "call", "call", "call", "event", "wait"]
    log.clear()
    parts = {"forward": lambda: log.append("f"), "backward": lambda: log.extend("bb")}
    found = turns.in_order(parts, 2)
    assert found.intervals == {"forward": [(0, 2), (5, 7)], "backward": [(2, 5), (7, 10)]}
    assert log == ["event", *("f", "event", "b", "b", "event") * 2, "wait"]
