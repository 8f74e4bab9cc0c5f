"""`python -m benchmarks.gpu` on ranks that run on the CPU; and what is for GPUs alone, with fakes.

What a GPU alone can show, only `python -m benchmarks.gpu` shows, on a machine that has one.
"""

import inspect
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import benchmarks.harness.record
import minidist
from benchmarks import __main__ as command
from benchmarks.cases import rates, small_job, split, trace
from benchmarks.checks import collectives as correct
from benchmarks.checks import multi_gpu, suites
from benchmarks.harness import training
from benchmarks.harness.bus_bandwidth import FACTORS
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, run
from benchmarks.harness.setups import MIB, Scope, Setup, on_gpus
from benchmarks.promises import WAYS, broken
from minidist.planner import jobs

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TWO = Setup(2)
SIZES: dict[str, Any] = {"message_bytes": (4096, 1 << 16), "part_bytes": 1 << 16}
SIZES |= {"copy_bytes": MIB, "width": 16, "widths": (16, 32), "batches": (1, 8)}
SMALL = replace(on_gpus(1), setups=(TWO,), rounds=2, **SIZES)
UNTIMED = ("minidist, views", "minidist, ring")
TRAINED = {
    "ddp": {"minidist", "overlapped", "naive", *UNTIMED, "minidist, native"},
    "zero": {"ddp", "stage 1", "stage 1, local", "stage 2", "stage 2, native"},
    "fsdp": {"torch", "fsdp", "fsdp, kept", "fsdp, native"},
}


# The command as a whole


def recorded(folder: Path, name: str, *changed: tuple[Any, str, Any], scope: Scope = SMALL) -> Row:
    """What the command writes when the CPU's ranks take the place of GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.harness.record, "RESULTS", folder)
        for owner, attribute, value in changed:
            patch.setattr(owner, attribute, value)
        status = command.run_sections(scope, name)
    found: Row = json.loads((folder / f"{name}.json").read_text())
    assert status == 0, found["rows"]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Row:
    longer = [section._replace(seconds=1000) for section in SECTIONS]  # for a busy machine
    return recorded(
        tmp_path_factory.mktemp("results"),
        "gpu",
        (command, "GPU_RECORDS", {"gpu": longer}),
        (command, "run", lambda *sections, **how: run(*sections, total=8000, **how)),
        (small_job, "MEMORY", tuple(map(tiny, small_job.MEMORY))),
        (small_job, "RATES", tuple(map(tiny, small_job.RATES))),
        (split, "JOB", TINY),
    )


def tiny(run: small_job.Run) -> small_job.Run:
    shape = small_job.Shape(2, 32, 64, 4, 2, 100)
    return run._replace(shape=shape, tokens=run.tokens // 64)


TINY = split.Job(64, 112, 16, 8, 128, 128)
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
    assert took["seconds"] > 0


def test_every_collective_is_checked_by_every_algorithm(written: Row) -> None:
    rows, library = rows_of(written, "correctness"), correct.library()
    assert [(row["collective"], row["setup"]) for row in rows] == [(n, TWO.name) for n in library]
    functions = [inspect.unwrap(getattr(minidist, name)) for name in minidist.__all__]
    codes = [each.__code__ for each in functions if hasattr(each, "__code__")]
    takes = {code.co_name for code in codes if "async_op" in code.co_varnames}
    assert {name.split(",")[0] for name in library} == set(correct.CALLS) == takes
    assert {row["checks"] for row in rows} == {len(correct.variants(0))}
    kinds = {(how.dtype, how.strided, how.async_op) for how in correct.variants(0)}
    assert len(kinds) == len(correct.DTYPES) * 4


@pytest.mark.claim("F6")
def test_times_of_collectives_are_complete_and_consistent(written: Row) -> None:
    rows = [row for row in rows_of(written, "collectives") if row["what"] != "copy"]
    cells = {(row["setup"], row["bytes"], row["what"]) for row in rows}
    assert len(cells) == len(rows) == len(SMALL.message_bytes) * len(FACTORS)
    assert broken("gpu", written["rows"]) == []
    assert {row["rounds"] for row in rows} == {SMALL.rounds}
    assert all(("checked_ms" in row) == (row["what"] == "all_reduce") for row in rows)
    (copy,) = rows_of(written, "copy bandwidth")
    assert copy["bytes"] == SMALL.copy_bytes
    assert copy["gb_per_s"] > 0
    one, other = rows_of(written, "stream order")
    assert one["call"] != other["call"]
    assert one["right"] is other["right"] is True


def test_a_job_s_memory_is_recorded_part_by_part_and_its_time_beside_the_plan(written: Row) -> None:
    runs = rows_of(written, "small job", "memory")
    assert len(runs) == len(small_job.MEMORY)
    for row in runs:
        assert len(row["levels"]["forward"]) == len(row["levels"]["backward"]) == 2
        assert row["levels"]["forward"][0] < row["levels"]["forward"][1] <= row["peak_bytes"]
        assert row["peak_bytes"] == max(row["peak_bytes_of"].values())
    single, _, again, ddp, views, fused = runs
    parameters = 4 * single["parameters"]  # bytes of gradients
    assert ddp["held_bytes"] - single["held_bytes"] == pytest.approx(parameters, rel=0.01)
    assert views["start_bytes_of"]["update"] == views["held_bytes"], "gradients are always there"
    assert again["levels"]["forward"][1] < runs[1]["levels"]["forward"][1]
    assert fused["peak_bytes_of"]["update"] < views["peak_bytes_of"]["update"]
    assert all("ms_factor" in row for row in rows_of(written, "small job"))
    rates = rows_of(written, "small job", "rate")
    assert all(0 < row["tflops"] < row["planned_tflops"] for row in rates)


def test_parts_of_a_layer_are_timed_beside_the_whole(written: Row) -> None:
    for what, keys, ways in (
        ("tensor", ("ranks", "sequence_parallel"), product(split.RANKS, (False, True))),
        ("micro batch", ("sequences",), product(split.MICRO_BATCHES)),
        ("expert", ("experts", "together"), product(split.EXPERTS, (False, True))),
    ):
        rows = rows_of(written, "split layers", what)
        assert {tuple(row[key] for key in keys) for row in rows} == {*ways} - {(1, True)}
        assert rows[0]["ratio"] == 1
    whole, *blocks = rows_of(written, "split layers", "attention")
    assert (whole["queries"], whole["keys"], whole["ratio"]) == (128, 128, 1)
    shapes = [(row["queries"], row["keys"]) for row in blocks]
    assert shapes == [(16, 16), (16, 16), (16, 8), (8, 16)]
    below, share = blocks[1], 16 * 16 / (128 * 129 / 2)  # of the pairs of a query and a key
    assert below["ratio"] == pytest.approx(below["ms"][1] / whole["ms"][1] / share, rel=2e-3)


def test_parts_of_a_layer_are_as_large_as_they_say() -> None:
    """All ranks' parts have the weights of the whole, and the norms once each."""
    norms = sum(p.numel() for p in split.Part(TINY, 1).parameters() if p.dim() == 1)
    sizes = [sum(p.numel() for p in split.Part(TINY, ranks).parameters()) for ranks in split.RANKS]
    for ranks, size in zip(split.RANKS, sizes, strict=True):
        assert ranks * (size - norms) == sizes[0] - norms
    part, x = split.Part(TINY, 4, split_tokens=True), torch.randn(1, 32, 64)
    assert part(x).shape == x.shape
    assert part.norm(x).shape == (1, 128, 64), "matrices see all tokens"


def test_experts_together_compute_what_they_do_one_by_one() -> None:
    torch.manual_seed(0)
    layer, x = split.Experts(4, 8, 6, together=True), torch.randn(4, 3, 8)
    together = layer(x)
    layer.together = False
    torch.testing.assert_close(layer(x), together)


def test_a_gpu_that_is_too_small_is_recorded_as_such() -> None:
    def full(run: small_job.Run) -> Row:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nmore")

    (row,) = minidist.launch(small_job.tried, 1, tiny(small_job.MEMORY[0]), full, device="cpu")
    assert row["out_of_memory"] == "CUDA out of memory. Tried"


def test_what_needs_more_gpus_is_skipped_by_name(written: Row) -> None:
    rows = {row["check"]: row for row in rows_of(written, "several GPUs")}
    assert list(rows) == [check.name for check in multi_gpu.CHECKS]
    for check in multi_gpu.CHECKS:
        row, here = rows[check.name], check.cpu_too and check.gpus <= TWO.ranks
        assert row["review"] == check.number
        assert row.get("skipped") == (None if here else f"needs {check.gpus} GPUs, found 0")
        assert row.get("right", not here)
    assert rows["messages of 64 MiB"]["messages"] == 2


def test_training_is_compared_and_timed_against_torch_s(written: Row) -> None:
    for section, ways in TRAINED.items():
        for precision in {"fp32"} if section == "ddp" else {"fp32", "bf16"}:
            rows = [r for r in rows_of(written, section) if r.get("precision") == precision]
            losses = [row for row in rows if row["what"] == "losses"]
            assert {row["way"] for row in losses} >= ways
            assert any(row["checkpointed"] for row in losses) == (section != "ddp")
            assert max(row["difference"] for row in losses) <= training.TOLERANCE[precision]
            steps = {row["way"]: row for row in rows if row["what"] == "step"}
            assert steps.keys() >= ways - {*UNTIMED}
            assert precision == "bf16" or list(steps) == WAYS[section]
            repeats = {(row["ranks"], row["rounds"]) for row in steps.values()}
            assert repeats == {(TWO.ranks, SMALL.rounds)}


def test_ddp_hides_communication_and_views_save_a_copy_at_some_sizes(written: Row) -> None:
    ((way, share),) = ((row["way"], row["share"]) for row in rows_of(written, "ddp", "hidden"))
    assert (way, 0 <= share <= 1) == ("minidist", True)
    memory = {(row["way"], row["views"]): row for row in rows_of(written, "ddp", "memory")}
    assert len(memory) == 4
    for (_, views), row in memory.items():
        gradients_and_buckets = row["gradient_bytes"] * (1 if views else 2)
        assert row["held_bytes"] == pytest.approx(gradients_and_buckets, rel=0.01)
    rows = rows_of(written, "fsdp", "size")
    sizes = [(row["width"], row["way"]) for row in rows]
    assert sizes == [*product((16, 32), ("ddp", "fsdp"))]
    assert rows[0]["parameters"] < rows[2]["parameters"]
    assert all(row["ratio"] == 1 for row in rows if row["way"] == "ddp")


def test_within_a_limit_the_largest_batch_that_fits_is_found(written: Row) -> None:
    rows = rows_of(written, "fsdp", "limit")
    assert [row["way"] for row in rows] == ["ddp", "fsdp"] * 3
    ddp = [row["batch"] for row in rows if row["way"] == "ddp"]
    assert ddp == [8, 1, 0], "all of it, the least, and nothing but the state"


def test_memory_is_measured_and_predicted(written: Row) -> None:
    for section in ("zero", "fsdp"):
        rows = rows_of(written, section, "memory")
        found = {row["way"]: row for row in rows}
        assert all(0 < row["held_bytes"] < row["peak_bytes"] for row in rows)
        again = [way for way in found if way.endswith(", checkpointed")]
        assert again
        for way in again:
            assert found[way]["peak_bytes"] < found[way.split(", ")[0]]["peak_bytes"]
        assert sum("predicted_held_bytes" in row for row in rows) >= 4


# F of a block, a section that is asked for by name

BLOCK = small_job.Shape(1, 32, 64, 4, 2, 100)
WAYS_OF_BLOCKS = ("bf16, compiled", "autocast")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Rows of the section alone, with a block that a CPU can train."""
    changed = {"BLOCKS": (BLOCK,), "TOKENS": (16, 32), "WAYS": WAYS_OF_BLOCKS}
    of_rates = [(rates, name, value) for name, value in changed.items()]
    found = recorded(tmp_path_factory.mktemp("results"), "gpu_rates", *of_rates)
    assert found["command"] == "python -m benchmarks.gpu rates"
    assert [row["section"] for row in found["rows"][::9]] == ["environment", "command"]
    return rows_of(found, "rates")


def test_a_block_s_matrices_and_attention_have_each_their_rate(blocks: list[Row]) -> None:
    assert [(row["way"], row["checkpointed"], row["tokens"]) for row in blocks] == [
        *product(WAYS_OF_BLOCKS, (False, True), (16, 32))
    ]
    block = small_job.block_of(BLOCK, False)
    products = 2 * sum(p.numel() for p in block.parameters() if p.dim() == 2)  # of a token
    for row in blocks:
        passes, tokens = (4 if row["checkpointed"] else 3), row["tokens"]
        pairs = 2 * tokens * BLOCK.width  # of a token: half of those that no mask hides
        for part, parts in product(small_job.PARTS, ("ms", "without_attention_ms")):
            low, middle, high = row[parts][part]
            assert 0 < low <= middle <= high
        took, rest = (
            sum(row[parts][part][1] for part in ("forward", "backward")) / 1e3
            for parts in ("ms", "without_attention_ms")
        )
        done = 1e-12 * passes * tokens
        assert row["tflops"] == pytest.approx(done * (products + pairs) / took, rel=2e-3)
        assert row["matrices_tflops"] == pytest.approx(done * products / rest, rel=2e-3)
        if took > 1.1 * rest:  # or rounding shows
            attention = row["attention_tflops"]
            assert attention == pytest.approx(done * pairs / (took - rest), rel=0.05)
            assert row["attention"] == pytest.approx(attention / row["matrices_tflops"], rel=2e-3)
        assert row["planned_tflops"] > row["tflops"]


def test_blocks_are_those_of_the_jobs() -> None:
    for shape, job in zip(rates.BLOCKS, (jobs.SMALL, jobs.MEDIUM, jobs.LARGE), strict=True):
        with torch.device("meta"):
            block = small_job.block_of(shape, False)
        assert sum(p.numel() for p in block.parameters()) == job.largest_unit
        assert shape.width == job.width
    _, section = command.GPU_RECORDS["gpu_rates"]
    assert (section.name, section.seconds) == ("rates", 240), "four minutes"


def test_a_sum_takes_attention_s_place_and_all_weights_have_gradients() -> None:
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    right = query + 3 * key.repeat_interleave(2, 1)  # each two heads share a key and a value
    torch.testing.assert_close(rates.summed(query, key, 2 * key, is_causal=True), right)
    block = small_job.block_of(BLOCK, False)
    with patch("course.training.models.scaled_dot_product_attention", rates.summed):
        block(torch.randn(1, 16, 32)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in block.parameters())


def on_a_small_gpu(runs: list[small_job.Run], seconds: float, path: str) -> None:
    def times(run: small_job.Run, seconds: float) -> Any:
        if run.tokens > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried\nmore")
        raise ValueError("odd\nmore")

    with patch.object(rates, "times", times):
        rates.on_rank(runs, seconds, {}, path)


def test_a_block_without_memory_or_time_is_a_row_and_one_that_fails_fails_the_section(
    tmp_path: Path,
) -> None:
    runs = [small_job.Run("bf16", BLOCK, tokens) for tokens in (16, 32)]
    with pytest.raises(minidist.RankError, match="1 of 2 runs failed"):
        minidist.launch(on_a_small_gpu, 1, runs, 60, str(tmp_path / "rows"), device="cpu")
    minidist.launch(on_a_small_gpu, 1, runs[1:], 0, str(tmp_path / "rows"), device="cpu")
    odd, full, late = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    assert (odd["tokens"], odd["error"]) == (16, "ValueError: odd")
    assert (full["tokens"], full["out_of_memory"]) == (32, "CUDA out of memory. Tried")
    assert (late["tokens"], late["no_time"]) == (32, "the 0 s of this section are over")


def test_rows_of_blocks_outlive_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(_: Setup, fn: Any, runs: Any, *args: Any, timeout: float) -> None:
        seconds, earlier, path = args
        assert earlier == {}
        assert (len(runs), len(set(runs))) == (72, 72)
        assert 0 < seconds < timeout <= 240
        Path(path).write_text('{"width": 3072}\n')
        raise minidist.RankError("rank 0 was killed", [0])

    monkeypatch.setattr(Setup, "launch", launch)
    rows: list[Row] = []
    with pytest.raises(minidist.RankError, match="killed"):
        rows.extend(rates.measure(on_gpus(1), Clock(240)))
    assert rows == [{"width": 3072}]


# On a machine that has torch and numpy alone

ALONE = """
"Only torch, numpy and what those two need; no installed minidist."
import sys

gone = ("cloudpickle", "matplotlib", "psutil", "IPython", "yaml", "pytest", "scipy", "nbformat")

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.path[:] = [each for each in sys.path if not each.rstrip("/").endswith("/lib")]
others = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
sys.meta_path[:] = [Hidden(), *others]
"""
RUN = """
import sys
from pathlib import Path
import benchmarks.harness.record
from benchmarks import __main__ as command
from benchmarks.harness.setups import Scope, Setup

assert "cloudpickle" not in sys.modules and "matplotlib" not in sys.modules
benchmarks.harness.record.RESULTS = Path(sys.argv[1])
sections = command.GPU_SECTIONS
sections[:] = [each for each in sections if each.name in ("environment", "stream order")]
sys.exit(command.run_sections(Scope((Setup(2),))))
"""


def test_it_runs_with_torch_and_numpy_alone_from_a_checkout(tmp_path: Path) -> None:
    """And ends with status 2 where there is no GPU."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    env = {key: value for key, value in os.environ.items() if not key.startswith("MINIDIST")}
    env |= {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}

    before, how = sorted(RESULTS.iterdir()), {"capture_output": True, "text": True, "timeout": 600}
    run = partial(subprocess.run, cwd=ROOT, env=env, **how)  # type: ignore[call-overload]
    done = run([sys.executable, "-c", RUN, str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["right"] for row in rows if row["section"] == "stream order"] == [True, True]
    done = run([sys.executable, "-m", "benchmarks.gpu"])
    assert (done.returncode, done.stdout) == (2, "no CUDA device: nothing to measure\n")
    assert sorted(RESULTS.iterdir()) == before


# Suites and a trace, sections that are asked for by name too


def test_a_trace_and_the_suites_of_the_tests_are_recorded(tmp_path: Path) -> None:
    small = training.Config(width=16, layers=2, batch=2)
    few = {"pipeline": suites.SUITES["pipeline"]}  # which sends by torch's isend
    shared = replace(SMALL, setups=(TWO._replace(shared=True),))
    changed = (trace, "CONFIG", small), (suites, "SUITES", few)
    found = recorded(tmp_path, "gpu_suites", *changed, scope=shared)
    for row, way in zip(rows_of(found, "trace"), trace.WAYS, strict=True):
        ends = [end for phase in trace.PHASES for end in row["host_ms"][phase]]
        assert row["way"] == way
        assert ends == sorted(ends)
    (row,) = rows_of(found, "suites")
    assert row["cases"] > 5
    assert row["wrong"] == []


def test_a_suite_s_wrong_cases_are_recorded_and_fail_the_section() -> None:
    here = {"bad": suites.Suite(__name__, ("FEW",), ("FEW",))}
    alone = replace(SMALL, setups=(Setup(1),))
    refused = pytest.raises(ExceptionGroup, match="1 wrong, such as one: off")
    with patch.object(suites, "SUITES", here), refused:
        list(suites.measure(alone, Clock(100)))


FEW = ["one"]


def all_off(cases: list[str]) -> list[str]:
    assert torch.ones(()).device == torch.randn((), generator=torch.Generator()).device
    return [f"{case}: off" for case in cases]


def test_kernels_belong_to_the_phase_that_launched_them() -> None:
    phases = (("forward", 1000, 100), ("backward", 1100, 200), ("update", 1300, 50))
    mark = {"ph": "X", "cat": "user_annotation"}
    events: list[Row] = [mark | {"name": n, "ts": a, "dur": b} for n, a, b in phases]
    events += [{**events[0], "cat": "gpu_user_annotation", "ts": 1200}, {"ph": "M"}]
    for place, (launched, ran) in enumerate([(1010, 1050), (1105, 1310), (1106, 1345)]):
        args = {"args": {"correlation": place}, "ph": "X"}
        events.append({"cat": "cuda_runtime", "name": "launch", "ts": launched, "dur": 1, **args})
        events.append({"cat": "kernel", "name": "sum", "ts": ran, "dur": 30, **args})
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "args": {}}
    found = trace.trim([*events, copy | {"ts": 1350, "dur": 5}])
    assert found["host_ms"] == {"forward": [0, 0.1], "backward": [0.1, 0.3], "update": [0.3, 0.35]}
    lanes = {"forward": [[0.05, 0.08]], "backward": [[0.31, 0.375]], "update": []}
    assert found["gpu_ms"] == {**lanes, "to host": [[0.35, 0.355]], "from host": []}
