"""`python -m benchmarks.gpu`, its logic on ranks that run on the CPU; and the GPU paths with fakes.

What a GPU alone can show, only the command itself shows, on a machine that has one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import benchmarks.record
import minidist
from benchmarks.gpu import (
    command,
    correct,
    ddp,
    fsdp,
    limits,
    order,
    there,
    times,
    training,
    turns,
    zero,
)
from benchmarks.gpu.cases import CASES, Setting
from benchmarks.gpu.section import LEAST, TAIL, Clock, Section, in_each_world, run, worst
from benchmarks.gpu.worlds import MIB, Where, World, of_gpus
from benchmarks.record import Row
from minidist.collectives.runtime import executor as execute
from minidist.launch.launch import _devices
from minidist.profiler.spans import Span
from minidist.schedule import program as plan

ROOT = Path(__file__).parents[2]
SMALL = Where((World(1, "cpu"), World(3, "cpu")), sizes=(4096, MIB), large=5 * MIB, copy=MIB)
TWO = World(2, "cpu")
ALL = list(command.ALL)
COMPARED = {
    "zero": {"ddp", "stage 1", "stage 1, local", "stage 2", "stage 2, bf16"},
    "fsdp": {"torch", "fsdp", "fsdp, flat", "fsdp, ring", "fsdp, checkpointed", "fsdp, bf16"},
}


class Ticks:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def fill(rows: list[Row], found: Iterator[Row]) -> None:
    for row in found:
        rows.append(row)


# The command as a whole


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """What the command writes when the CPU's ranks take the place of GPUs."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.record, "RESULTS", folder)
        patch.setattr(training, "SHARE", 0.01)  # of more time, so that a busy machine has enough
        longer = [each._replace(seconds=300) if each.name in COMPARED else each for each in ALL]
        patch.setattr(command, "ALL", longer)
        status = command.main(SMALL)
    found: Row = json.loads((folder / "gpu.json").read_text())
    assert status == 0, found["rows"]
    return found


def rows_of(written: Row, section: str) -> list[Row]:
    return [row for row in written["rows"] if row["section"] == section]


def test_the_record_says_what_was_run_where_and_when(written: Row) -> None:
    assert written["command"] == "python -m benchmarks.gpu"
    assert "torch" in written["machine"]
    assert written["date"]
    assert {row["section"] for row in written["rows"]} == {
        "command",
        *(s.name for s in command.ALL),
    }
    (found,) = rows_of(written, "there")
    assert found["torch"] == torch.__version__
    assert {"gpus", "peers", "driver", "cuda", "nccl"} < set(found)
    (took,) = rows_of(written, "command")
    assert took["failed"] == []
    assert took["seconds"] > 0


def test_every_collective_is_checked_in_every_world_by_every_algorithm(written: Row) -> None:
    rows = rows_of(written, "correct")
    for world in SMALL.worlds:
        names = [row["collective"] for row in rows if row["world"] == world.name]
        assert names == list(correct.library())
    assert {name.split(",")[0] for name in correct.library()} == set(CASES)
    assert all(row["wrong"] == [] for row in rows)
    assert {row["checks"] for row in rows} == {len(correct.ways(0))}
    kinds = {(way.dtype, way.strided, way.async_op) for way in correct.ways(0)}
    assert len(kinds) == len(correct.DTYPES) * 4


def test_cases_are_all_collectives_that_there_are() -> None:
    """A function of minidist that takes `async_op` is a collective; a new one must get a case."""
    functions = [getattr(minidist, name) for name in minidist.__all__]
    collectives = {  # some have two names
        each.__name__
        for each in functions
        if "async_op" in getattr(getattr(each, "__code__", None), "co_varnames", ())
    }
    assert set(CASES) == collectives


def test_times_are_complete_and_consistent(written: Row) -> None:
    rows = rows_of(written, "times")
    cells = [(row["world"], row["bytes"], row["collective"]) for row in rows]
    assert len(set(cells)) == len(cells) == 2 * len(SMALL.sizes) * len(times.FACTORS)
    for row in rows:
        assert row["rounds"] >= turns.LEAST_ROUNDS
        for way in ("ours", "native"):
            low, middle, high = row[f"{way}_us"]
            assert 0 < low <= middle <= high
            rate = times.busbw(row["collective"], row["bytes"], row["ranks"], middle / 1e6)
            assert row[f"{way}_busbw_GB/s"] == pytest.approx(rate / 1e9, rel=1e-3)
        assert row["ratio"] == pytest.approx(row["ours_us"][1] / row["native_us"][1], abs=1e-3)


def test_limits_and_order_are_recorded(written: Row) -> None:
    (copy,) = rows_of(written, "limits")
    assert copy["bytes"] == SMALL.copy
    assert copy["GB/s"] > 0
    calls = [(row["world"], row["call"]) for row in rows_of(written, "order")]
    assert len(set(calls)) == len(calls) == 2 * len(SMALL.worlds)
    assert all(row["right"] for row in rows_of(written, "order"))


def test_ddp_is_compared_timed_and_looked_at_in_every_world(written: Row) -> None:
    for world in SMALL.worlds:
        rows = [row for row in rows_of(written, "ddp") if row["world"] == world.name]
        *compared, took, overlap = rows
        assert {row["way"] for row in compared} >= {"overlapped", "naive", "overlapped, views"}
        assert all(row["right"] and row["difference"] <= ddp.CLOSE for row in compared)
        assert took["rounds"] >= turns.LEAST_ROUNDS
        assert took["ratio"] == pytest.approx(took["ours_us"][1] / took["torch_us"][1], abs=1e-3)
        assert 0 <= overlap["hidden"] <= 1
        assert overlap["buckets"] >= 1


@pytest.mark.parametrize("section", COMPARED)
def test_zero_and_fsdp_are_compared_timed_and_measured_in_every_world(
    written: Row, section: str
) -> None:
    for world in SMALL.worlds:
        rows = [row for row in rows_of(written, section) if row["world"] == world.name]
        compared = {row["way"]: row for row in rows if "difference" in row}
        assert set(compared) >= COMPARED[section]
        assert all(row["right"] and row["difference"] <= row["close"] for row in compared.values())
        took = {row["step"]: row for row in rows if "step" in row}
        assert set(took) == {"fp32", "bf16"}
        for row in took.values():
            assert row.get("rounds", 0) >= turns.LEAST_ROUNDS or row["left_out"] == times.NO_TIME
        memory = {(row["memory"], row["checkpointed"]): row for row in rows if "memory" in row}
        assert all(0 < row["held_bytes"] < row["peak_bytes"] for row in memory.values())
        again = [name for name, checkpointed in memory if checkpointed]
        assert len(again) == 2
        for name in again:
            assert memory[name, True]["peak_bytes"] < memory[name, False]["peak_bytes"]
        told = [row for row in memory.values() if "predicted_held_bytes" in row]
        assert len(told) == 4
        for row in told:  # a thread may still hold the last message's tensors
            assert 0.95 < row["held_bytes"] / row["predicted_held_bytes"] < 1.4


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmarks.record, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert command.main() == 2
    assert capsys.readouterr().out == "no CUDA device: nothing to measure\n"
    assert list(tmp_path.iterdir()) == []


# On a machine that has torch and numpy alone

ALONE = """
import sys

def hide():
    "Only torch, numpy and what those two need; no installed minidist."
    gone = ("cloudpickle", "matplotlib", "psutil", "IPython", "yaml", "pytest", "scipy", "nbformat")

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in gone:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.path[:] = [each for each in sys.path if not each.rstrip("/").endswith("/lib")]
    sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
    sys.meta_path.insert(0, Hidden())

hide()
"""
RUN = """
import sys, torch
from benchmarks.gpu.library import find
find()
import benchmarks.record
from benchmarks.gpu import command, correct
from benchmarks.gpu.worlds import Where, World
from pathlib import Path

assert "cloudpickle" not in sys.modules and "matplotlib" not in sys.modules
benchmarks.record.RESULTS = Path(sys.argv[1])
command.ALL[:] = [each for each in command.ALL if each.name in ("there", "order")]
sys.exit(command.main(Where((World(2, "cpu"),), (4096,), 0, 4096)))
"""


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in a checkout whose environment has torch and numpy alone."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    env = {key: value for key, value in os.environ.items() if not key.startswith("MINIDIST")}
    env["PYTHONPATH"] = str(tmp_path)

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200
        )

    return start


def test_it_runs_with_torch_and_numpy_alone_from_a_checkout(
    alone: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    missing = alone("-c", "import minidist")
    assert "ModuleNotFoundError" in missing.stderr, "the test hides what is installed"
    done = alone("-c", RUN, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["right"] for row in rows if row["section"] == "order"] == [True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the command would measure")
def test_the_command_ends_with_status_2_without_a_gpu(
    alone: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = alone("-m", "benchmarks.gpu")
    assert done.returncode == 2, done.stderr
    assert done.stdout == "no CUDA device: nothing to measure\n"


@pytest.mark.parametrize("page", ["README.md", "book/index.md"])
def test_pages_say_whether_a_gpu_run_is_recorded(page: str) -> None:
    recorded = (ROOT / "benchmarks" / "results" / "gpu.json").exists()
    assert ("not yet recorded" in (ROOT / page).read_text()) == (not recorded)


# Sections: budget, errors


def test_a_section_that_fails_is_recorded_with_what_it_found_before_and_the_next_one_runs() -> None:
    def breaks(where: Where, clock: Clock) -> Iterator[Row]:
        yield {"found": 1}
        raise RuntimeError("of the section\nand more")

    def works(where: Where, clock: Clock) -> Iterator[Row]:
        yield {"found": 2}

    said: list[str] = []
    sections = [Section("first", breaks, 60), Section("second", works, 60)]
    rows, failed = run(sections, SMALL, said.append)
    assert failed == ["first"]
    found, error, after = rows
    assert found == {"section": "first", "found": 1}
    assert after == {"section": "second", "found": 2}
    assert error["section"] == "first"
    assert error["error"] == "RuntimeError: of the section"
    assert 1 < len(error["traceback"]) <= TAIL
    assert "first: FAILED: RuntimeError: of the section" in said


def test_a_command_with_a_failed_section_writes_its_record_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(where: Where, clock: Clock) -> Iterator[Row]:
        raise OSError("no such thing")
        yield {}

    monkeypatch.setattr(benchmarks.record, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "ALL", [Section("broken", breaks, 60)])
    assert command.main(SMALL) == 1
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert rows[0]["error"] == "OSError: no such thing"
    assert rows[1]["failed"] == ["broken"]


def test_each_section_gets_its_time_as_long_as_there_is_some() -> None:
    now = Ticks()
    given = []

    def takes(seconds: float) -> Callable[[Where, Clock], Iterator[Row]]:
        def measure(where: Where, clock: Clock) -> Iterator[Row]:
            given.append(clock.left())
            now.at += seconds
            yield {}

        return measure

    sections = [Section("a", takes(30), 50), Section("b", takes(65), 50), Section("c", takes(0), 9)]
    rows, failed = run(sections, SMALL, lambda _: None, total=99, now=now)
    assert given == [50, 50]
    assert failed == ["c"], f"{99 - 30 - 65} s are too few to begin it"
    assert rows[-1]["error"].startswith("TimeoutError: not begun")
    assert LEAST > 99 - 30 - 65


def test_a_clock_shares_what_is_left_and_says_when_nothing_is() -> None:
    now = Ticks()
    clock = Clock(60, now)
    assert clock.share(3) == 20
    now.at += 30
    assert clock.share(2) == 15
    now.at += 29.5
    with pytest.raises(TimeoutError, match="the 60 s of this section are over"):
        clock.share()
    now.at += 100
    assert clock.left() == 0


def test_all_sections_fit_in_eight_minutes() -> None:
    assert sum(each.seconds for each in command.ALL) <= 450 < 8 * 60
    assert len({each.name for each in command.ALL}) == len(command.ALL)


def test_a_world_that_fails_does_not_keep_the_others_from_being_measured() -> None:
    @in_each_world
    def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
        if world.ranks == 1:
            raise ValueError("alone")
        yield {"seconds": seconds}

    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="1 rank on the CPU, Gloo: ValueError: alone"):
        fill(rows, measure(SMALL, Clock(60, Ticks())))
    assert rows == [{"world": SMALL.worlds[1].name, "ranks": 3, "seconds": 60}]


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


def spoils_its_input(output: torch.Tensor, whole: torch.Tensor, async_op: bool = False) -> Any:
    work = minidist.reduce_scatter_tensor(output, whole, async_op=async_op)
    if work:
        work.wait()
    whole.add_(1)
    return work


def refuses(tensor: torch.Tensor, async_op: bool = False) -> Any:
    if async_op:
        raise ValueError("not asynchronously")
    return minidist.all_reduce(tensor)


@pytest.mark.parametrize(
    ("name", "call", "told"),
    [
        ("all_reduce", forgets_a_rank, "rank 1: torch.float32 x 1"),
        ("all_reduce, strange", writes_beside, "rank 0: torch.float32 x 1, strided"),
        ("reduce_scatter_tensor", spoils_its_input, "rank 0: torch.float32 x 1"),
        ("all_reduce", refuses, "rank 0: torch.float32 x 0, async: ValueError: not asynchronously"),
    ],
)
def test_a_wrong_collective_fails_the_section(
    name: str, call: Callable[..., Any], told: str
) -> None:
    rows: list[Row] = []
    with pytest.raises(AssertionError, match=f"wrong, such as {name}, {told}"):
        fill(rows, correct.compare(TWO, {name: call}, 4096, 60))
    assert rows[0]["wrong"][0].startswith(told)
    assert len(rows[0]["wrong"]) <= correct.SHOWN


def test_a_collective_that_raises_on_one_rank_fails_the_section_and_is_named() -> None:
    def broken(tensor: torch.Tensor, async_op: bool = False) -> Any:
        if dist.get_rank() == 1:
            raise OSError("rank 1 is out")
        return minidist.all_reduce(tensor, async_op=async_op)

    with pytest.raises(minidist.RankError, match="rank 1 raised OSError: rank 1 is out"):
        list(correct.compare(TWO, {"all_reduce": broken}, 4096, 60))


def test_what_lies_between_strided_elements_is_looked_after() -> None:
    setting = Setting(0, 1, 5, torch.float32, True, torch.device("cpu"))
    tensor = setting.put(torch.ones(5), torch.zeros(5))
    assert not setting.right()
    tensor.zero_()
    assert setting.right()
    tensor.as_strided((5,), (2,), 1).zero_()
    assert not setting.right()


# Order of the stream


def test_a_call_that_does_not_see_what_was_queued_before_it_fails_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(self: World, fn: Callable[..., Any], *args: Any, timeout: float) -> list[list[Row]]:
        row = {
            "call": "synchronous",
            "right": True,
            "back_while_stream_is_busy": True,
            "call_ms": 1.0,
        }
        return [
            [row],
            [{**row, "right": False, "back_while_stream_is_busy": False, "call_ms": 9.0}],
        ]

    monkeypatch.setattr(World, "launch", late)
    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="does not show what was queued before"):
        fill(rows, order.measure(Where((TWO,), (), 0, 0), Clock(60)))
    (row,) = rows
    assert (row["right"], row["call_ms"]) == (False, 9.0), "of all ranks the worst"


# Times


@pytest.mark.parametrize(
    ("collective", "ranks", "seconds", "rate"),
    [
        ("all_reduce", 2, 1.0, 1.0e9),  # S/t * 2(n-1)/n
        ("all_reduce", 8, 0.5, 3.5e9),
        ("reduce_scatter_tensor", 4, 1.0, 0.75e9),  # S/t * (n-1)/n
        ("all_gather_into_tensor", 8, 2.0, 0.4375e9),
        ("all_reduce", 1, 1.0, 0.0),
    ],
)
def test_busbw_is_that_of_nccl_tests(
    collective: str, ranks: int, seconds: float, rate: float
) -> None:
    assert times.busbw(collective, 10**9, ranks, seconds) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("trials", "budget", "calls", "rounds"),
    [
        ([1e-5, 1e-5], 10.0, 20, 21),  # quick: as many as there may be
        ([0.5, 0.25], 3.0, 1, 4),  # slow: as many rounds as fit
        ([0.5, 0.5], 2.0, 1, 0),  # two rounds tell nothing
        ([1e-3, 4e-3], 1.0, 5, 21),
    ],
)
def test_rounds_fit_the_budget(trials: list[float], budget: float, calls: int, rounds: int) -> None:
    assert turns.plan(trials, budget) == (calls, rounds)
    assert calls * rounds * sum(trials) <= budget


@pytest.mark.parametrize(
    ("smaller", "seconds"),
    [
        (None, 0.0),
        ({"bytes": 1000, "ours_us": [1, 300, 999], "native_us": [1, 200, 999]}, 0.002),
        ({"bytes": 1000, "ours_us": [1, 300, 999]}, 0.0012),
        ({"bytes": 1000, "left_out": "no time"}, float("inf")),
    ],
)
def test_a_size_is_expected_to_take_what_the_smaller_one_took_by_its_bytes(
    smaller: Row | None, seconds: float
) -> None:
    assert times.expected(smaller, 4000) == pytest.approx(seconds)


def no_time() -> list[Row]:
    return times.on_rank((4096, 16384), budget=0.0)


def test_sizes_without_time_are_left_out_on_all_ranks_alike() -> None:
    of_ranks = minidist.launch(no_time, 2, device="cpu")
    assert of_ranks[0] == of_ranks[1]
    cells = [(row["bytes"], row["collective"]) for row in of_ranks[0]]
    assert cells == [(nbytes, name) for nbytes in (4096, 16384) for name in times.FACTORS]
    assert {row["left_out"] for row in of_ranks[0]} == {times.NO_TIME}


def refused_on_one() -> list[str]:
    def call() -> None:
        if dist.get_rank() == 1:
            raise RuntimeError("not implemented\nat all")

    return [turns.refusal(call), turns.refusal(lambda: None)]


def test_what_one_rank_s_backend_refuses_no_rank_times() -> None:
    assert minidist.launch(refused_on_one, 2, device="cpu") == [
        ["on another rank", ""],
        ["RuntimeError: not implemented", ""],
    ]


# DDP


def that_average_nothing() -> dict[str, ddp.Wrap]:
    return {"bare": lambda module: module}


def test_gradients_that_are_not_torch_s_fail_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "ways", that_average_nothing)
    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="gradients differ from torch's, such as bare: rank 0"):
        fill(rows, ddp.measure(Where((TWO,), (), 0, 0), Clock(20)))
    assert [row["right"] for row in rows if "right" in row] == [False]
    assert len(rows) == 3, "times and overlap are kept"


def test_a_gradient_that_is_no_number_on_one_rank_fails_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(self: World, *args: Any, timeout: float) -> list[Any]:
        spans = [Span(0, "communication", "bucket 0", 1.0, 2.0)]
        return [({"way": 0.0}, {}, spans), ({"way": float("nan")}, {}, spans)]

    monkeypatch.setattr(World, "launch", told)
    with pytest.raises(ExceptionGroup, match="such as way: rank 1: nan"):
        list(ddp.measure(Where((TWO,), (), 0, 0), Clock(20)))


def test_overlap_is_the_share_of_communication_under_backward() -> None:
    spans = [
        Span(0, "compute", "backward", 0.0, 3.0),
        Span(0, "communication", "bucket 0", 1.0, 2.0),
        Span(0, "communication", "bucket 1", 2.0, 5.0),
    ]
    assert ddp.overlap(spans) == {"hidden": 0.5, "buckets": 2, "communication_ms": 4000.0}


# ZeRO and FSDP


def that_learn_faster(module: Any) -> training.Trained:
    wrapped = minidist.DistributedDataParallel(module)
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=2e-3)


def compared_with_another() -> list[Row]:
    want = training.Training(fsdp.ddp, **fsdp.EXACT).losses()
    ways = {"the same": zero.unsharded, "another": that_learn_faster}
    return list(training.compared(ways, want, training.CLOSE, **fsdp.EXACT))


def test_losses_that_are_not_torch_s_are_seen() -> None:
    for rows in minidist.launch(compared_with_another, 2, device="cpu"):
        assert {row["way"]: row["right"] for row in rows} == {"the same": True, "another": False}


@pytest.mark.parametrize("section", [zero, fsdp])
def test_losses_that_are_not_torch_s_on_one_rank_fail_the_section(
    section: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(self: World, *args: Any, timeout: float) -> list[list[Row]]:
        fine = {"way": "a", "difference": 0.0, "right": True}
        return [[fine, {"memory": "a"}], [{**fine, "difference": 0.5, "right": False}, {}]]

    monkeypatch.setattr(World, "launch", told)
    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="losses differ from torch's, such as a: 5"):
        fill(rows, section.measure(Where((TWO,), (), 0, 0), Clock(20)))
    assert [row["right"] for row in rows if "right" in row] == [False]
    assert len(rows) == 2, "what was found besides is kept"


def test_of_all_ranks_the_worst_is_told() -> None:
    nan = float("nan")
    one = {"way": "a", "right": True, "difference": 1e-12, "bytes": 5, "ms": [1, 2]}
    other = {"way": "a", "right": False, "difference": 1e-3, "bytes": 7, "ms": [1, 2]}
    assert worst((one, other)) == {**other, "way": "a"}
    for rows in ((one, {**one, "difference": nan}), ({**one, "difference": nan}, one)):
        assert str(worst(rows)["difference"]) == "nan"


def that_break() -> dict[str, str]:
    def breaks(module: Any) -> training.Trained:
        if dist.get_rank() == 1:
            raise RuntimeError("not on this backend")
        return module, torch.optim.SGD(module.parameters())

    return training.refused({"fine": fsdp.ddp, "breaks": breaks})


def test_a_way_that_one_rank_s_backend_refuses_is_told_on_all() -> None:
    of_ranks = minidist.launch(that_break, 2, device="cpu")
    assert of_ranks == [
        {"breaks": "on another rank"},
        {"breaks": "RuntimeError: not on this backend"},
    ]


# GPUs that are not there


def test_worlds_are_a_rank_for_each_gpu_and_ranks_that_share_one() -> None:
    assert of_gpus(1).worlds == (World(1, "cuda"), World(2, "cuda", True), World(4, "cuda", True))
    alone = [world.ranks for world in of_gpus(8).worlds if not world.shared]
    assert alone == [1, 8]
    assert [world.ranks for world in of_gpus(16).worlds] == [1, 8, 2, 4]
    assert of_gpus(1).sizes[0] == 4 << 10
    assert of_gpus(1).sizes[-1] == 256 << 20


@pytest.mark.parametrize(("seen", "shown"), [(None, "0"), ("3,5", "3"), ("GPU-abc", "GPU-abc")])
def test_ranks_that_share_a_gpu_are_shown_one_and_the_environment_comes_back(
    seen: str | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    during = []

    def launch(fn: Callable[..., Any], ranks: int, *args: Any, **options: Any) -> list[Any]:
        during.append((os.environ.get("CUDA_VISIBLE_DEVICES"), ranks, options["device"]))
        raise KeyError

    monkeypatch.setattr(minidist, "launch", launch)
    for world in (World(2, "cuda", shared=True), World(2, "cuda")):
        with pytest.raises(KeyError):
            world.launch(limits.copies, 1, timeout=1)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    assert during == [(shown, 2, "cuda"), (seen, 2, "cuda")]


def test_what_is_there_names_each_gpu_and_who_reaches_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.1\necho 580.1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    card = SimpleNamespace(
        name="A card", total_memory=3 << 29, major=9, minor=0, multi_processor_count=132
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: a < b)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    found = there.look()
    gpu = {"name": "A card", "GiB": 1.5, "capability": "9.0", "multiprocessors": 132}
    assert found["gpus"] == [gpu, gpu]
    assert found["peers"] == [[True, True], [False, True]]
    assert (found["driver"], found["nccl"]) == ("580.1", "2.28.9")
    json.dumps(found)


def test_times_on_a_gpu_are_those_of_events_around_all_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return 6.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    took = turns.seconds(lambda: log.append("call"), 3, torch.device("cuda:0"))
    assert took == pytest.approx(0.002)
    assert log == ["event", "call", "call", "call", "event", "wait"]


@pytest.mark.parametrize(("gpus", "ranks"), [(1, 2), (2, 5)])
def test_more_ranks_than_gpus_is_said_in_one_line(
    gpus: int, ranks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    devices, backend = _devices("cuda", ranks)
    assert devices == [f"cuda:{rank % gpus}" for rank in range(ranks)]
    assert backend == "gloo", "for tensors on the GPU too: NCCL would refuse two ranks on one"
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{ranks} ranks share {gpus} GPU" in line
    assert "host memory over Gloo" in line


def test_on_a_gpu_every_message_of_a_post_goes_into_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL runs what is grouped at once; one at a time, a send waits for ever for its receive."""
    batches: list[list[Any]] = []
    monkeypatch.setattr(dist, "P2POp", lambda *args, **options: SimpleNamespace(op=args, **options))
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: batches.append(ops) or ["work"])
    to, back = torch.zeros(2), torch.ones(2)
    assert execute._grouped([(back, 3), (back, 1)], [(to, 1)], None) == ["work"]
    assert execute._grouped([], [], None) == [], "nothing to send is no group"
    (ops,) = batches
    calls = [(each.op[0], each.group_peer) for each in ops]
    assert calls == [(dist.irecv, 3), (dist.irecv, 1), (dist.isend, 1)]


def as_on_nccl() -> tuple[int, dict[str, tuple[int, list[str]]]]:
    """Run all collectives by the GPU's path, as NCCL does: a group begins when the last has ended.

    How many groups there were, and what `check` says.
    """
    groups = 0
    grouped = execute._grouped

    def one_after_another(*args: Any) -> list[dist.Work]:
        nonlocal groups
        groups += 1
        for work in grouped(*args):
            work.wait()
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "_grouped", one_after_another)
        patch.setattr(execute._Flight, "on_gpu", property(lambda _: True, lambda *_: None), False)
        patch.setattr(plan, "PIECE", 4096)  # bytes of a message
        ways = [correct.Way(numel, torch.float32, False, False) for numel in (1, 5123)]
        patch.setattr(correct, "ways", lambda large: ways)
        calls = {name: call for name, call in correct.library().items() if "auto" not in name}
        found = correct.check(calls, large=0)
    return groups, found


def test_groups_of_messages_one_after_another_neither_deadlock_nor_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    for groups, found in minidist.launch(as_on_nccl, 5, device="cpu", timeout=200):
        assert groups > len(found), "messages went by groups"
        assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
