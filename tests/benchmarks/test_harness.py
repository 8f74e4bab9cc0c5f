"""The harness: sections and their time, turns, what ranks' rows become; nothing by the clock."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import benchmarks.harness.record
import minidist
from benchmarks import __main__ as command
from benchmarks.cases import collectives, fsdp, zero
from benchmarks.harness import training, turns
from benchmarks.harness.bus_bandwidth import FACTORS, bus_bandwidth
from benchmarks.harness.record import Row, worst_of_ranks
from benchmarks.harness.sections import (
    LEAST,
    TOTAL,
    TRACEBACK_LINES,
    Clock,
    Section,
    in_each_setup,
    run,
)
from benchmarks.harness.setups import Scope, Setup

SMALL = Scope((Setup(1), Setup(3)), rounds=None)
TWO = Setup(2)
SECTIONS = list(command.GPU_SECTIONS)


def answering(monkeypatch: pytest.MonkeyPatch, of_ranks: list[Any]) -> None:
    """Have every launch return this."""
    monkeypatch.setattr(Setup, "launch", lambda *_, **__: of_ranks)


def on_two_ranks() -> dict[str, Any]:
    every = (with_time, no_time, that_break, compared_with_another)
    return {each.__name__: each() for each in every}


OfRanks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two() -> OfRanks:
    """What each function of `on_two_ranks` found, on two ranks."""
    return minidist.launch(on_two_ranks, 2, device="cpu")


# Sections: budget, errors


def test_a_failed_section_is_recorded_with_what_it_found_before_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(scope: Scope, clock: Clock) -> Iterator[Row]:
        yield {"found": 1}
        raise RuntimeError("of the section\nand more")

    def works(scope: Scope, clock: Clock) -> Iterator[Row]:
        yield {"found": 2}

    monkeypatch.setattr(benchmarks.harness.record, "RESULTS", tmp_path)
    sections = [Section("first", breaks, 60), Section("second", works, 60)]
    monkeypatch.setitem(command.GPU_RECORDS, "gpu", sections)
    assert command.run_sections(SMALL) == 1
    found, error, after, took = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert found == {"section": "first", "found": 1}
    assert after == {"section": "second", "found": 2}
    assert error["error"] == "RuntimeError: of the section"
    assert 1 < len(error["traceback"]) <= TRACEBACK_LINES
    assert took["failed"] == ["first"]
    assert "first: FAILED: RuntimeError: of the section" in capsys.readouterr().out


def test_each_section_gets_its_time_and_what_is_left_of_those_before_as_long_as_there_is_some() -> (
    None
):
    at, given = [100.0], []

    def takes(seconds: float) -> Callable[[Scope, Clock], Iterator[Row]]:
        def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
            given.append(clock.left())
            at[0] += seconds
            yield {}

        return measure

    sections = [Section("a", takes(30), 50), Section("b", takes(65), 50), Section("c", takes(0), 9)]
    rows, failed = run(sections, SMALL, lambda _: None, total=99, now=lambda: at[0])
    assert given == [50, 99 - 30]
    assert failed == ["c"], f"{99 - 30 - 65} s are too few to begin it"
    assert rows[-1]["error"].startswith("TimeoutError: not begun")
    assert LEAST > 99 - 30 - 65


def test_a_clock_shares_what_is_left_and_says_when_nothing_is() -> None:
    at = [100.0]
    clock = Clock(60, lambda: at[0])
    assert clock.share(3).left() == 20
    at[0] += 30
    assert clock.share(2).left() == 15
    at[0] += 29.5
    with pytest.raises(TimeoutError, match="the 60 s of this section are over"):
        clock.left()


def test_all_sections_fit_in_eight_minutes() -> None:
    assert sum(each.seconds for each in SECTIONS) <= TOTAL < 8 * 60
    assert len({each.name for each in SECTIONS}) == len(SECTIONS)


def test_a_setup_that_fails_does_not_keep_the_others_from_being_measured() -> None:
    @in_each_setup
    def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
        if setup.ranks == 1:
            raise ValueError("alone")
        yield {"seconds": clock.left()}

    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="1 rank on the CPU, Gloo: ValueError: alone"):
        rows.extend(measure(SMALL, Clock(60, lambda: 0.0)))
    assert rows == [{"setup": SMALL.setups[1].name, "ranks": 3, "seconds": 60}]


def test_of_all_ranks_the_worst_is_recorded() -> None:
    nan = float("nan")
    one = {"way": "a", "right": True, "difference": 1e-12, "bytes": 5, "ms": [1, 2]}
    other = {"way": "a", "right": False, "difference": 1e-3, "bytes": 7, "ms": [1, 2]}
    assert worst_of_ranks((one, other)) == other
    for rows in ((one, {**one, "difference": nan}), ({**one, "difference": nan}, one)):
        assert str(worst_of_ranks(rows)["difference"]) == "nan"


# Times


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    for collective, ranks, seconds, rate in (
        ("all_reduce", 8, 0.5, 3.5e9),  # S/t * 2(n-1)/n
        ("reduce_scatter", 4, 1.0, 0.75e9),  # S/t * (n-1)/n
        ("all_gather", 1, 1.0, 0.0),
    ):
        assert bus_bandwidth(collective, 10**9, ranks, seconds) == pytest.approx(rate)


def test_rounds_fit_the_budget() -> None:
    for trials, budget, calls, rounds in (
        ([1e-5, 1e-5], 10.0, 20, 21),  # quick: as many as there may be
        ([0.5, 0.25], 3.75, 1, 4),  # slow: as many rounds as fit, and one to warm up
        ([0.5, 0.5], 3.0, 1, 0),  # two rounds tell nothing
    ):
        assert turns.repeats_within(budget, trials) == (calls, rounds)
        assert not rounds or calls * (1 + rounds) * sum(trials) <= budget


def with_time() -> tuple[list[Any], turns.Turns]:
    found = collectives.on_rank((4096,), None, seconds=1000)
    ways = {"ddp": zero.unsharded}
    return found, training.time_steps(ways, training.NARROW, None, seconds=1000)


def test_with_enough_time_there_are_as_many_rounds_as_there_may_be(two: OfRanks) -> None:
    for found, steps in (rank["with_time"] for rank in two):
        assert [row["what"] for row, _ in found] == list(FACTORS)
        for timed in (*(timed for _, timed in found), steps):
            assert 1 <= timed.calls <= turns.MOST_CALLS
            assert {len(each) for each in timed.intervals.values()} == {turns.MOST_ROUNDS}


def no_time() -> list[Any]:
    return collectives.on_rank((4096, 16384), None, seconds=0.0)


def test_sizes_without_time_are_left_out_on_all_ranks_alike(
    two: OfRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ranks = [rank["no_time"] for rank in two]
    assert of_ranks[0] == of_ranks[1]
    answering(monkeypatch, of_ranks)
    rows = list(collectives._measure(TWO, SMALL, Clock(60)))
    cells = [(row["bytes"], row["what"]) for row in rows]
    assert cells == [(nbytes, name) for nbytes in (4096, 16384) for name in FACTORS]
    assert {row["left_out"] for row in rows} == {training.NO_TIME}


def that_break() -> dict[str, str]:
    def breaks(module: Any) -> training.Trained:
        if dist.get_rank() == 1:
            raise RuntimeError("not on this backend\nat all")
        return module, torch.optim.SGD(module.parameters())  # no collective to wait in

    return training.refused({"torch": fsdp.reference, "native": breaks, "ours": breaks})


def test_a_way_that_one_rank_s_backend_refuses_is_known_to_all_ranks(two: OfRanks) -> None:
    assert [rank["that_break"] for rank in two] == [
        {"native": "on another rank"},
        {"native": "RuntimeError: not on this backend"},
    ]


# Training


def that_learn_faster(module: Any) -> training.Trained:
    wrapped = minidist.DistributedDataParallel(module)
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=2e-3)


def compared_with_another() -> list[Row]:
    ways = {"the same": zero.unsharded, "another": that_learn_faster}
    return list(training.compared(ways, fsdp.reference, "fp32", training.EXACT))


def test_losses_that_are_not_torch_s_are_seen(two: OfRanks) -> None:
    for rows in (rank["compared_with_another"] for rank in two):
        assert {row["way"]: row["right"] for row in rows} == {"the same": True, "another": False}


def test_losses_that_are_not_torch_s_on_one_rank_fail_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nan = float("nan")
    fine = {"what": "losses", "way": "a", "difference": 0.0, "right": True}
    took = {"fp32": turns.Turns(1, {"torch": [(0.0, 1.0)] * 3})}
    answering(monkeypatch, [([fine], took), ([{**fine, "difference": nan, "right": False}], took)])
    rows: list[Row] = []
    comparison = training.Comparison(zero.ways, zero.torchs)
    with pytest.raises(AssertionError, match=r"losses differ from the reference's, .* a: nan"):
        rows.extend(training.compare(comparison, TWO, Scope((TWO,)), Clock(20)))
    assert [(row["what"], row.get("right")) for row in rows] == [("losses", False), ("step", None)]
