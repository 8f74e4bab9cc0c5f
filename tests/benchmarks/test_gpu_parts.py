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
from benchmarks.cases import ahead, experts, grid, rates
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


# Experts, what is recomputed, and casts


@pytest.fixture(scope="module")
def of_experts() -> Iterator[list[Row]]:
    changed = {"MEDIUM": TINY, "TOKENS": 64, "LONG": 128, "EXPERTS": ((64, 32), (32, 64))}
    changed |= {"ON_A_RANK": (1, 4), "OF_EACH": (16,), "LOOPED": (4,), "OF_PRODUCT": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(experts, name, value)
        patch.setattr(grid, "MOST", 2)
        few = [
            case for case in experts.plans() if not (getattr(case, "compiled", 0) and case[3] > 1)
        ]
        patch.setattr(experts, "plans", lambda: few)
        yield list(experts.measure(ALONE, Clock(300)))


def test_the_medium_job_and_experts_of_known_models_are_measured_the_most_wanted_first() -> None:
    todo = experts.plans()
    assert len(todo) == len(set(todo)) == 3 * 4 * 4 * 2 + 3 * 2 * 4 + 4 + 15
    assert todo[0] == experts.Group(7168, 2048, 1, 64)
    assert todo[48] == experts.Matrix("query", 4096, 4096, 8192)
    assert todo[52] == experts.Layer(grid.SHAPES[0], "none", (8192, 32_768))


def test_a_rank_s_experts_are_timed_in_one_call_and_one_by_one(of_experts: list[Row]) -> None:
    rows = [row for row in of_experts if row["what"] == "group"]
    found = [(row["way"], row["by"], row["experts"]) for row in rows]
    ways = (("products", "grouped_mm"), ("feed-forward", "grouped_mm"))
    assert found == [(*way, count) for way in ways for count in (1, 4) * 2] + [
        ("loop", "loop", 4),
        ("loop", "loop", 4),
    ]
    for row in rows:
        assert row["tokens"] == 16
        forward, backward = (row["ms"][name][1] / 1e3 for name in ("forward", "backward"))
        done = 1e-12 * 6 * row["experts"] * 16 * 64 * 32
        assert row["forward_tflops"] == pytest.approx(done / forward, rel=2e-3)
        assert row["tflops"] == pytest.approx(3 * done / (forward + backward), rel=2e-3)


def test_less_is_kept_the_more_is_recomputed(of_experts: list[Row]) -> None:
    rows = [row for row in of_experts if row["what"] == "layer"]
    assert [row["tokens"] for row in rows] == [64, 128] * 7 + [64] * 4 + [64, 128]
    kept = {
        (row["compiled"], row["sequences"], row["tokens"], row["recomputed"]): row["kept_bytes"]
        for row in rows
    }
    for case in ((True, 1, 64), (True, 1, 128), (False, 1, 64), (False, 1, 128), (False, 2, 64)):
        full, other, selective, none = (
            kept[*case, which] for which in ("full", "every other", "selective", "none")
        )
        assert full < other < selective, case
        assert selective < none or case[0], "a compiler recomputes on its own"
        output = 2 * case[1] * case[2] * TINY.width  # in bf16; the state of random numbers is 5 kB
        assert 0 <= full - output < 6000, case
    assert all(row["peak_bytes"] > row["kept_bytes"] for row in rows)


def test_what_is_recomputed_changes_no_output() -> None:
    whole = grid.layer_of(grid.Share(TINY, 1, 64))
    right = whole(x := torch.randn(1, 64, TINY.width, dtype=torch.bfloat16, requires_grad=True))
    for which in experts.RECOMPUTED:
        case = experts.Layer(TINY, which, (64,), compiled=False)
        torch.testing.assert_close(experts.around(case, whole)(x), right)


def test_casts_are_timed_apart_and_with_their_products(of_experts: list[Row]) -> None:
    rows = [row for row in of_experts if row["what"] == "matrix"]
    assert [row["matrix"] for row in rows] == ["query", "key", "gate", "down"]
    for row in rows:
        assert row["ms"].keys() == {"bf16", "fp8, products", "fp8, casts", "fp8"}
        gain = row["ms"]["bf16"][1] / row["ms"]["fp8"][1]
        assert row["times_as_fast"]["fp8"] == pytest.approx(gain, rel=2e-3)
        assert row["error"] < 0.05


def test_three_products_in_eight_bits_are_near_those_of_fp32() -> None:
    x, w, gradient = torch.randn(32, 48), torch.randn(16, 48), torch.randn(32, 16)
    types = torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2
    some = [experts.cast(each, dtype) for each, dtype in zip((x, w, gradient), types, strict=True)]
    right = x @ w.t(), gradient @ w, gradient.t() @ x
    for found, expected in zip(experts.scaled(*some), right, strict=True):
        assert (found.float() - expected).norm() < 0.08 * expected.norm()


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
