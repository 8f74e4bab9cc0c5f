"""Sections of `python -m benchmarks.gpu` that are asked for by name, in miniature on the CPU.

What each finds is written as it comes, so that a section that is cut off keeps it.
"""

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

import benchmarks.harness.record
import minidist
from benchmarks import __main__ as command
from benchmarks.cases import ahead, grid, rates
from benchmarks.cases.small_job import Run, Shape
from benchmarks.harness import environment, streams
from benchmarks.harness.record import Row, record
from benchmarks.harness.sections import Clock, Section, run
from benchmarks.harness.setups import Scope, Setup

ALONE = Scope((Setup(1),))
TINY = Shape(1, 128, 256, 8, 8, 100)


# Rows come one by one


def adds_and_waits(path: str) -> None:
    for place in range(3):
        streams.add(path, {"place": place})
    time.sleep(1000)


def test_a_section_that_is_cut_off_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.harness.record, "RESULTS", tmp_path)

    def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
        yield from streams.streamed(Setup(1), adds_and_waits, timeout=2)

    kept: list[int] = []
    section = Section("cut off", measure, 60)
    rows, failed = run([section], ALONE, keep=lambda rows: kept.append(len(rows)))
    assert [row.get("place") for row in rows] == [0, 1, 2, None]
    assert "did not end" in rows[-1]["error"]
    assert (kept, failed) == ([1, 2, 3], ["cut off"])


def test_a_record_is_written_after_each_row_and_each_name_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.harness.record, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    seen = []

    def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
        seen.append(scope.earlier.get("date"))
        for place in range(2):
            yield {"place": place}
            assert len(json.loads((tmp_path / "gpu_b.json").read_text())["rows"]) == place + 1

    def breaks(scope: Scope, clock: Clock) -> Iterator[Row]:
        raise ValueError("odd")
        yield

    record("gpu_b", [], "an earlier one")
    records = {"gpu_a": [Section("a", breaks, 9)], "gpu_b": [Section("b", measure, 9)]}
    monkeypatch.setattr(command, "GPU_RECORDS", records)
    assert command.main(["gpu", "a", "b"]) == 1
    a, b = (json.loads((tmp_path / f"gpu_{name}.json").read_text()) for name in "ab")
    assert a["command"] == "python -m benchmarks.gpu a"
    assert [row["section"] for row in b["rows"]] == ["b", "b", "command"]
    assert seen == [b["date"]]
    assert command.main(["gpu", "c"]) == 2


# A grid's layers and products


def test_each_rank_s_part_and_its_products_are_timed_the_most_wanted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {"SHAPES": (TINY,), "TOKENS": 32, "RANKS": (1, 8), "SEQUENCES": (2,), "MOST": 2}
    for name, value in (changed | {"OF_PRODUCT": 0.01}).items():
        monkeypatch.setattr(grid, name, value)
    rows = list(grid.measure(ALONE, Clock(200)))
    each = [(row["way"], row["sequences"], row["tensor"]) for row in rows if row["what"] == "layer"]
    ways = (("bf16", 1), ("bf16", 2), ("autocast", 1))
    assert each[::2] == each[1::2] == [(*way, ranks) for way in ways for ranks in (1, 8)]
    whole, again, part = rows[:3]
    assert (whole["checkpointed"], again["checkpointed"]) == (False, True)
    assert part["peak_bytes"] < whole["peak_bytes"]
    done = 32 * (2 * sum(p.numel() for p in grid.held(TINY, 1).parameters() if p.ndim > 1) + 8192)
    for row, passes in ((whole, 3), (again, 4)):
        forward, backward = (row["ms"][name][1] / 1e3 for name in ("forward", "backward"))
        assert row["forward_tflops"] == pytest.approx(1e-12 * done / forward, rel=2e-3)
        assert row["tflops"] == pytest.approx(
            passes * 1e-12 * done / (forward + backward), rel=2e-3
        )
    products = [row for row in rows if row["what"] == "product"]
    assert [row["matrix"] for row in products] == ["query", "key", "out", "gate", "down"] * 2
    for row in products:
        assert row["ms"].keys() == {"bf16", "fp8", "fp8, rowwise"} - row.get("refused", {}).keys()
        assert all(error < 0.05 for error in row["error_of"].values())


def test_a_grid_has_the_jobs_layers_and_parts_make_up_the_whole() -> None:
    todo = grid.plans(grid.SHAPES, grid.TOKENS)
    assert len(todo) == len(set(todo)) == 3 * 4 * (2 + 1 + 3 * 2) + 8
    assert [each.shape.width for each in todo[:24:8]] == [4096, 16_384, 3072]
    for shape, ranks in product(grid.SHAPES, grid.RANKS):
        matrices = [p.numel() for p in grid.held(shape, ranks).parameters() if p.ndim > 1]
        sizes = shape.sizes(grid.TOKENS)
        products = (sizes.operations - sizes.head - sizes.attention) / grid.TOKENS
        assert 2 * sum(matrices) * ranks == products


def test_what_finds_no_time_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    minidist.launch(grid.on_rank, 1, grid.plans((TINY,), 32)[:2], 0, str(path), device="cpu")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["no_time"] for row in rows] == ["the 0 s of this section are over"] * 2


# What a record lacks


def test_only_runs_that_a_record_of_this_gpu_lacks_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = Shape(1, 32, 64, 4, 2, 100)
    for name, value in {"BLOCKS": (shape,), "TOKENS": (16, 32), "WAYS": ("bf16",)}.items():
        monkeypatch.setattr(rates, name, value)
    (here,) = Setup(1).launch(environment.describe, timeout=60)
    about = {"section": "rates", "way": "bf16", "width": 32, "checkpointed": False}
    known: Row = {**about, "tokens": 16, "tflops": 7}
    late = {**about, "tokens": 32, "no_time": "over"}
    where = {"section": "environment", **here}
    earlier: Row = {"date": "1970-01-01", "rows": [where, known, late]}
    first, *others = rates.measure(Scope((Setup(1),), earlier=earlier), Clock(100))
    assert first == {**known, "date": "1970-01-01"}
    assert [row["checkpointed"] for row in others] == [False, True, True]
    assert all("date" not in row and row["tflops"] != 7 for row in others)
    runs = [Run("bf16", shape, tokens) for tokens in (16, 32)]
    assert rates.complete(runs[:1], earlier) == {}, "nothing is missing: all anew"
    where["torch"] = "another"
    assert rates.complete(runs, earlier) == {}


# How far the host runs ahead


def test_steps_of_fsdp2_are_timed_and_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2, 64, 128, 4, 2, 100)
    cases = tuple(case._replace(shape=shape, tokens=16) for case in ahead.CASES)
    monkeypatch.setattr(ahead, "CASES", cases)
    rows = list(ahead.measure(ALONE, Clock(200)))
    assert [row["case"] for row in rows] == [case.name for case in cases]
    for row in rows:
        assert row["ms"].keys() == {"forward", "backward", "update"}
        assert len(row["layers"]["entered"]) == 2
        assert len(row["layers"]["gathered"]) == (2 if row["ranks"] > 1 else 0)


def test_a_layer_s_lead_is_from_its_first_launch_to_its_first_kernel() -> None:
    def mark(name: str, start: int, end: int, cat: str = "user_annotation") -> Row:
        return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "args": {}}

    events = [mark("forward", 1000, 3000), {"ph": "M"}, mark("FSDP::all_gather (0)", 4000, 4100)]
    for place, (start, ran) in enumerate([(1100, 1200), (1500, 2500)]):
        events += [mark(f"layer {place}", start, start + 300)]
        events += [mark(f"FSDP::all_gather ({place})", start - 50, start - 10)]
        for kernel in range(2):
            launch = mark("cudaLaunchKernel", start + 10 + kernel, start + 11, "cuda_runtime")
            kernel_ran = mark("gemm", ran + 100 * kernel, ran + 100 * kernel + 90, "kernel")
            for event in (launch, kernel_ran):
                events.append({**event, "args": {"correlation": 2 * place + kernel}})
    found = ahead.lead(events, 2)
    assert found["layers"] == {
        "launched": [0.11, 0.51],
        "started": [0.2, 1.5],
        "ended": [0.39, 1.69],
        "entered": [],
        "gathered": [0.05, 0.45],
    }
    assert found["lead_ms"] == [0.09, 0.99]
    assert (found["gathers_ahead_ms"], found["gathers_ahead"]) == ([-0.25], 0)
