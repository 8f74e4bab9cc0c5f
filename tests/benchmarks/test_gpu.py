"""The harness and its checks, on ranks that run on the CPU; and what is for GPUs alone, with fakes.

What a GPU alone can show, only `python -m benchmarks.gpu` shows, on a machine that has one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import benchmarks.harness.record
import minidist
from benchmarks import __main__ as command
from benchmarks.cases import collectives, fsdp, zero
from benchmarks.checks import collectives as correct
from benchmarks.checks import copy_bandwidth, stream_order
from benchmarks.harness import environment, training, turns
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
from benchmarks.harness.setups import MIB, Scope, Setup, on_gpus
from minidist.collectives.runtime import executor
from minidist.launch.launch import _devices
from minidist.schedule import program

ROOT = Path(__file__).parents[2]
SMALL = replace(
    on_gpus(1),
    setups=(Setup(1), Setup(3)),
    rounds=2,
    message_bytes=(4096, MIB),
    copy_bytes=MIB,
    width=16,
)
TWO = Setup(2)
UNTIMED = ("overlapped, views", "overlapped, ring")
TRAINED = {
    "ddp": {"overlapped", "naive", "overlapped, views", "overlapped, ring", "overlapped, native"},
    "zero": {"ddp", "stage 1", "stage 1, local", "stage 2", "stage 2, native"},
    "fsdp": {"torch", "fsdp", "fsdp, flat", "fsdp, kept", "fsdp, native"},
}


def fill(rows: list[Row], found: Iterator[Row]) -> None:
    for row in found:
        rows.append(row)


# The command as a whole


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """What the command writes when the CPU's ranks take the place of GPUs."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.harness.record, "RESULTS", folder)
        longer = [section._replace(seconds=1000) for section in SECTIONS]  # for a busy machine
        patch.setattr(command, "GPU_SECTIONS", longer)
        patch.setattr(command, "run", lambda *sections: run(*sections, total=8000))
        status = command.run_sections(SMALL)
    found: Row = json.loads((folder / "gpu.json").read_text())
    assert status == 0, found["rows"]
    return found


SECTIONS = list(command.GPU_SECTIONS)


def rows_of(written: Row, section: str, what: str | None = None) -> list[Row]:
    rows = [row for row in written["rows"] if row["section"] == section]
    return [row for row in rows if what in (None, row.get("what"))]


def test_the_record_says_what_was_run_where_and_when(written: Row) -> None:
    assert written["command"] == "python -m benchmarks.gpu"
    assert "torch" in written["machine"]
    assert written["date"]
    sections = {row["section"] for row in written["rows"]}
    assert sections == {"command", *(section.name for section in SECTIONS)}
    (found,) = rows_of(written, "environment")
    assert found["torch"] == torch.__version__
    (took,) = rows_of(written, "command")
    assert took["failed"] == []
    assert took["seconds"] > 0


def test_every_collective_is_checked_in_every_setup_by_every_algorithm(written: Row) -> None:
    rows = rows_of(written, "correctness")
    for setup in SMALL.setups:
        names = [row["collective"] for row in rows if row["setup"] == setup.name]
        assert names == list(correct.library())
    assert {name.split(",")[0] for name in correct.library()} == set(correct.CALLS)
    assert all(row["wrong"] == [] for row in rows)
    assert {row["checks"] for row in rows} == {len(correct.variants(0))}
    kinds = {(how.dtype, how.strided, how.async_op) for how in correct.variants(0)}
    assert len(kinds) == len(correct.DTYPES) * 4


def test_all_collectives_that_there_are_are_checked() -> None:
    """A function of minidist that takes `async_op` is a collective."""
    functions = [getattr(minidist, name) for name in minidist.__all__]
    names = {  # some have two
        each.__name__
        for each in functions
        if "async_op" in getattr(getattr(each, "__code__", None), "co_varnames", ())
    }
    assert set(correct.CALLS) == names


def test_times_of_collectives_are_complete_and_consistent(written: Row) -> None:
    rows = [row for row in rows_of(written, "collectives") if row["what"] != "copy"]
    cells = [(row["setup"], row["bytes"], row["what"]) for row in rows]
    assert len(set(cells)) == len(cells) == 2 * len(SMALL.message_bytes) * len(FACTORS)
    for row in rows:
        assert row["rounds"] == SMALL.rounds
        for way in ("auto", "native"):
            low, middle, high = row[f"{way}_ms"]
            assert 0 < low <= middle <= high
            rate = bus_bandwidth(row["what"], row["bytes"], row["ranks"], middle / 1e3)
            assert row[f"{way}_bus_gb_per_s"] == pytest.approx(rate / 1e9, rel=1e-2, abs=1e-6)
        assert row["ratio"] == pytest.approx(row["auto_ms"][1] / row["native_ms"][1], rel=1e-2)
        assert (row.get("checked_ms", 0) != 0) == (row["what"] == "all_reduce")


def test_bandwidth_of_copies_and_order_of_the_stream_are_recorded(written: Row) -> None:
    (copy,) = rows_of(written, "copy bandwidth")
    assert copy["bytes"] == SMALL.copy_bytes
    assert copy["gb_per_s"] > 0
    rows = rows_of(written, "stream order")
    calls = [(row["setup"], row["call"]) for row in rows]
    assert len(set(calls)) == len(calls) == 2 * len(SMALL.setups)
    assert all(row["right"] for row in rows)


@pytest.mark.parametrize("section", TRAINED)
def test_training_is_compared_and_timed_in_every_setup(written: Row, section: str) -> None:
    rows = rows_of(written, section)
    precisions = {"fp32"} if section == "ddp" else {"fp32", "bf16"}
    for setup in SMALL.setups:
        for precision in precisions:
            here = [r for r in rows if (r["setup"], r.get("precision")) == (setup.name, precision)]
            losses = [row for row in here if row["what"] == "losses"]
            assert {row["way"] for row in losses} >= TRAINED[section]
            assert any(row["checkpointed"] for row in losses) == (section != "ddp")
            for row in losses:
                assert row["right"]
                assert row["difference"] <= training.TOLERANCE[precision]
            steps = [row for row in here if row["what"] == "step"]
            assert {row["way"] for row in steps} >= TRAINED[section] - {*UNTIMED}
            assert all(row["rounds"] == SMALL.rounds for row in steps)


@pytest.mark.parametrize("section", ["zero", "fsdp"])
def test_memory_is_measured_and_predicted_in_every_setup(written: Row, section: str) -> None:
    for setup in SMALL.setups:
        rows = [r for r in rows_of(written, section, "memory") if r["setup"] == setup.name]
        found = {row["way"]: row for row in rows}
        assert all(0 < row["held_bytes"] < row["peak_bytes"] for row in rows)
        again = [way for way in found if way.endswith(", checkpointed")]
        assert again
        for way in again:
            assert found[way]["peak_bytes"] < found[way.split(", ")[0]]["peak_bytes"]
        predicted = [row for row in rows if "predicted_held_bytes" in row]
        assert len(predicted) >= 5
        for row in predicted:  # a thread may still hold the last message's tensors
            assert 0.95 < row["held_bytes"] / row["predicted_held_bytes"] < 1.4


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmarks.harness.record, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert command.main(["gpu"]) == 2
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
import sys
from dataclasses import replace
from pathlib import Path
import benchmarks.harness.record
from benchmarks import __main__ as command
from benchmarks.harness.setups import Scope, Setup

assert "cloudpickle" not in sys.modules and "matplotlib" not in sys.modules
benchmarks.harness.record.RESULTS = Path(sys.argv[1])
sections = command.GPU_SECTIONS
sections[:] = [each for each in sections if each.name in ("environment", "stream order")]
command.CASES["launch"] = command.launch.measure, Scope((Setup(2),), rounds=1)
sys.exit(command.run_sections(Scope((Setup(2),))) or command.main(["launch"]))
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
    assert [row["right"] for row in rows if row["section"] == "stream order"] == [True, True]
    first, _ = json.loads((tmp_path / "launch.json").read_text())["rows"]
    assert first["what"] == "first launch"


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


class Ticks:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


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
    monkeypatch.setattr(command, "GPU_SECTIONS", sections)
    assert command.run_sections(SMALL) == 1
    found, error, after, took = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert found == {"section": "first", "found": 1}
    assert after == {"section": "second", "found": 2}
    assert error["error"] == "RuntimeError: of the section"
    assert 1 < len(error["traceback"]) <= TRACEBACK_LINES
    assert took["failed"] == ["first"]
    assert "first: FAILED: RuntimeError: of the section" in capsys.readouterr().out


def test_each_section_gets_its_time_as_long_as_there_is_some() -> None:
    now = Ticks()
    given = []

    def takes(seconds: float) -> Callable[[Scope, Clock], Iterator[Row]]:
        def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
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
    assert clock.share(3).left() == 20
    now.at += 30
    assert clock.share(2).left() == 15
    now.at += 29.5
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
        fill(rows, measure(SMALL, Clock(60, Ticks())))
    assert rows == [{"setup": SMALL.setups[1].name, "ranks": 3, "seconds": 60}]


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
    ("name", "call", "problem"),
    [
        ("all_reduce", forgets_a_rank, "rank 1: torch.float32 x 1"),
        ("all_reduce, strange", writes_beside, "rank 0: torch.float32 x 1, strided"),
        ("reduce_scatter_tensor", spoils_its_input, "rank 0: torch.float32 x 1"),
        ("all_reduce", refuses, "rank 0: torch.float32 x 0, async: ValueError: not asynchronously"),
    ],
)
def test_a_wrong_collective_fails_the_section(
    name: str, call: Callable[..., Any], problem: str
) -> None:
    rows: list[Row] = []
    with pytest.raises(AssertionError, match=f"wrong, such as {name}, {problem}"):
        fill(rows, correct.compare(TWO, {name: call}, 4096, Clock(60)))
    assert rows[0]["wrong"][0].startswith(problem)
    assert len(rows[0]["wrong"]) <= correct.SHOWN


def test_a_collective_that_raises_on_one_rank_fails_the_section_and_is_named() -> None:
    def broken(tensor: torch.Tensor, async_op: bool = False) -> Any:
        if dist.get_rank() == 1:
            raise OSError("rank 1 is out")
        return minidist.all_reduce(tensor, async_op=async_op)

    with pytest.raises(minidist.RankError, match="rank 1 raised OSError: rank 1 is out"):
        list(correct.compare(TWO, {"all_reduce": broken}, 4096, Clock(60)))


# Order of the stream


def answering(monkeypatch: pytest.MonkeyPatch, of_ranks: list[Any]) -> None:
    """Have every launch return this."""
    monkeypatch.setattr(Setup, "launch", lambda *_, **__: of_ranks)


def test_a_call_that_does_not_see_what_was_queued_before_it_fails_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"call": "synchronous", "right": True, "back_while_stream_is_busy": True, "call_ms": 1.0}
    answering(monkeypatch, [[row], [{**row, "right": False, "call_ms": 9.0}]])
    rows: list[Row] = []
    with pytest.raises(ExceptionGroup, match="does not show what was queued before"):
        fill(rows, stream_order.measure(Scope((TWO,)), Clock(60)))
    (row,) = rows
    assert (row["right"], row["call_ms"]) == (False, 9.0), "of all ranks the worst"


def test_of_all_ranks_the_worst_is_recorded() -> None:
    nan = float("nan")
    one = {"way": "a", "right": True, "difference": 1e-12, "bytes": 5, "ms": [1, 2]}
    other = {"way": "a", "right": False, "difference": 1e-3, "bytes": 7, "ms": [1, 2]}
    assert worst_of_ranks((one, other)) == other
    for rows in ((one, {**one, "difference": nan}), ({**one, "difference": nan}, one)):
        assert str(worst_of_ranks(rows)["difference"]) == "nan"


# Times


@pytest.mark.parametrize(
    ("collective", "ranks", "seconds", "rate"),
    [
        ("all_reduce", 2, 1.0, 1.0e9),  # S/t * 2(n-1)/n
        ("all_reduce", 8, 0.5, 3.5e9),
        ("reduce_scatter", 4, 1.0, 0.75e9),  # S/t * (n-1)/n
        ("all_gather", 8, 2.0, 0.4375e9),
        ("all_reduce", 1, 1.0, 0.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    collective: str, ranks: int, seconds: float, rate: float
) -> None:
    assert bus_bandwidth(collective, 10**9, ranks, seconds) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("trials", "budget", "calls", "rounds"),
    [
        ([1e-5, 1e-5], 10.0, 20, 21),  # quick: as many as there may be
        ([0.5, 0.25], 3.75, 1, 4),  # slow: as many rounds as fit, and one to warm up
        ([0.5, 0.5], 3.0, 1, 0),  # two rounds tell nothing
        ([1e-3, 4e-3], 1.0, 5, 21),
    ],
)
def test_rounds_fit_the_budget(trials: list[float], budget: float, calls: int, rounds: int) -> None:
    assert turns.repeats_within(budget, trials) == (calls, rounds)
    assert not rounds or calls * (1 + rounds) * sum(trials) <= budget


def with_time() -> tuple[list[Any], turns.Turns]:
    found = collectives.on_rank((4096,), None, seconds=1000)
    ways = {"ddp": zero.unsharded}
    return found, training.time_steps(ways, training.NARROW, None, seconds=1000)


def test_with_enough_time_there_are_as_many_rounds_as_there_may_be() -> None:
    for found, steps in minidist.launch(with_time, 2, device="cpu"):
        assert [row["what"] for row, _ in found] == list(FACTORS)
        for timed in (*(timed for _, timed in found), steps):
            assert 1 <= timed.calls <= turns.MOST_CALLS
            assert {len(each) for each in timed.intervals.values()} == {turns.MOST_ROUNDS}


def no_time() -> list[Any]:
    return collectives.on_rank((4096, 16384), None, seconds=0.0)


def test_sizes_without_time_are_left_out_on_all_ranks_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_ranks = minidist.launch(no_time, 2, device="cpu")
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
        return fsdp.reference(module)

    return training.refused({"torch": fsdp.reference, "native": breaks, "ours": breaks})


def test_a_way_that_one_rank_s_backend_refuses_is_known_to_all_ranks() -> None:
    assert minidist.launch(that_break, 2, device="cpu") == [
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


def test_losses_that_are_not_torch_s_are_seen() -> None:
    for rows in minidist.launch(compared_with_another, 2, device="cpu"):
        assert {row["way"]: row["right"] for row in rows} == {"the same": True, "another": False}


@pytest.mark.parametrize(("far", "shown"), [(0.5, "5.0e-01"), (float("nan"), "nan")])
def test_losses_that_are_not_torch_s_on_one_rank_fail_the_section(
    far: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = {"what": "losses", "way": "a", "difference": 0.0, "right": True}
    took = {"fp32": turns.Turns(1, {"torch": [(0.0, 1.0)] * 3})}
    answering(monkeypatch, [([fine], took), ([{**fine, "difference": far, "right": False}], took)])
    rows: list[Row] = []
    comparison = training.Comparison(zero.ways, zero.torchs)
    with pytest.raises(AssertionError, match=f"losses differ from the reference's, .* a: {shown}"):
        fill(rows, training.compare(comparison, TWO, Scope((TWO,)), Clock(20)))
    assert [(row["what"], row.get("right")) for row in rows] == [("losses", False), ("step", None)]


# GPUs that are not there


def test_setups_are_a_rank_for_each_gpu_and_ranks_that_share_one() -> None:
    assert on_gpus(1).setups == (Setup(1, "cuda"), Setup(2, "cuda", True), Setup(4, "cuda", True))
    alone = [setup.ranks for setup in on_gpus(8).setups if not setup.shared]
    assert alone == [1, 8]
    assert [setup.ranks for setup in on_gpus(16).setups] == [1, 8, 2, 4]
    assert on_gpus(1).message_bytes[0] == 4 << 10
    assert on_gpus(1).message_bytes[-1] == 256 << 20


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
    for setup in (Setup(2, "cuda", shared=True), Setup(2, "cuda")):
        with pytest.raises(KeyError):
            setup.launch(copy_bandwidth.copies, 1, timeout=1)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    assert during == [(shown, 2, "cuda"), (seen, 2, "cuda")]


def test_the_environment_names_each_gpu_and_which_it_can_access(
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
    found = environment.describe()
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
    monkeypatch.setattr(minidist, "device", lambda: torch.device("cuda:0"))
    assert turns.interval(lambda: log.append("call"), 3) == (0.0, pytest.approx(0.006))
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
    assert executor._grouped([(back, 3), (back, 1)], [(to, 1)], None) == ["work"]
    assert executor._grouped([], [], None) == [], "nothing to send is no group"
    (ops,) = batches
    calls = [(each.op[0], each.group_peer) for each in ops]
    assert calls == [(dist.irecv, 3), (dist.irecv, 1), (dist.isend, 1)]


def as_on_nccl() -> tuple[int, dict[str, tuple[int, list[str]]]]:
    """Run all collectives by the GPU's path, as NCCL does: a group begins when the last has ended.

    How many groups there were, and what `check` says.
    """
    groups = 0
    grouped = executor._grouped

    def one_after_another(*args: Any) -> list[dist.Work]:
        nonlocal groups
        groups += 1
        for work in grouped(*args):
            work.wait()
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "_grouped", one_after_another)
        patch.setattr(executor._Flight, "on_gpu", property(lambda _: True, lambda *_: None), False)
        patch.setattr(program, "PIECE", 4096)  # bytes of a message
        variants = [correct.Variant(numel, torch.float32, False, False) for numel in (1, 5123)]
        patch.setattr(correct, "variants", lambda part_bytes: variants)
        calls = {name: call for name, call in correct.library().items() if "auto" not in name}
        found = correct.check(calls, part_bytes=0)
    return groups, found


def test_groups_of_messages_one_after_another_neither_deadlock_nor_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    for groups, found in minidist.launch(as_on_nccl, 5, device="cpu", timeout=200):
        assert groups > len(found), "messages went by groups"
        assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
