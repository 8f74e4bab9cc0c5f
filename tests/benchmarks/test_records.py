"""The recorded benchmarks are complete, and show what the course promises.

A record is data, so nothing here depends on the clock: `make bench` makes it, on a quiet machine.
"""

import math
import re
from datetime import date
from itertools import product
from statistics import median
from typing import Any

import pytest

from benchmarks.__main__ import CASES
from course.pages.recorded import RESULTS, recorded

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))
MIB = 1 << 20


DDP = ["torch", "alone", "minidist", "overlapped", "bucketed", "flat", "naive", "minidist, native"]
ZERO = ["torch", "torch, views", "ddp", "stage 1", "stage 1, native", "stage 1, local"]
ZERO += ["stage 2", "stage 2, native", "from_scratch, stage 1", "from_scratch, stage 2"]
FSDP = ["torch", "torch, kept", "ddp", "fsdp", "fsdp, kept", "fsdp, native", "from_scratch"]
WAYS = {"ddp": DDP, "zero": ZERO, "fsdp": FSDP}
Row = dict[str, Any]


def rows_of(name: str, what: str, ranks: int | None = None) -> list[Row]:
    rows = [row for row in recorded(name)["rows"] if row["what"] == what]
    return [row for row in rows if ranks in (None, row["ranks"])]


def by_way(name: str, what: str, ranks: int) -> dict[str, Row]:
    return {row["way"]: row for row in rows_of(name, what, ranks)}


def test_the_page_names_every_case_that_can_be_recorded() -> None:
    page = (RESULTS.parents[1] / "book" / "results.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*CASES]
    assert {name for name in NAMES if not name.startswith("gpu")} == {*CASES}


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_how_where_and_when(name: str) -> None:
    found = recorded(name)
    assert re.match(r"python -m benchmarks\b", found["command"])
    assert all(word in found["machine"] for word in ("Python", "torch"))
    assert date.fromisoformat(found["date"]) >= date(2026, 1, 1)
    assert found["rows"]
    assert all(isinstance(row, dict) and row for row in found["rows"])


def test_a_later_launch_of_four_ranks_takes_at_most_a_fifth_of_a_second() -> None:
    rows = recorded("launch")["rows"]
    (later,) = (row for row in rows if row["what"].startswith("later") and row["ranks"] == 4)
    assert later["runs"] >= 15
    assert 0 < later["seconds"] <= 0.2


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_from_one_mebibyte_the_ring_is_on_average_within_a_tenth_of_the_backend(ranks: int) -> None:
    rows = [row for row in recorded("ring")["rows"] if row["ranks"] == ranks]
    rows = [row for row in rows if row["bytes"] >= MIB]
    assert [row["bytes"] for row in rows] == [MIB, 4 * MIB, 16 * MIB, 64 * MIB]
    for row in rows:
        assert row["rounds"] >= 15
        assert len(row["ring_ms"]) == len(row["native_ms"]) >= 5
        pairs = zip(row["ring_ms"], row["native_ms"], strict=True)
        assert row["ratio"] == pytest.approx(median(a / b for a, b in pairs), abs=2e-3)
        assert row["ratio"] <= 1.2, row
    assert math.prod(row["ratio"] for row in rows) ** (1 / len(rows)) <= 1.1


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
def test_auto_is_never_slower_than_the_backend_and_twice_as_fast_on_average(name: str) -> None:
    rows = [row for row in recorded("collectives")["rows"] if row["what"] == name]
    sizes = [4**k * 1024 for k in range(1, 9)]
    assert [(row["ranks"], row["bytes"]) for row in rows] == [
        (n, s) for n in (2, 4, 8) for s in sizes
    ]
    ratios = [row["ratio"] for row in rows]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["auto_ms"][1] / row["native_ms"][1], rel=0.05)
    assert max(ratios) <= 1.1
    assert math.prod(ratios) ** (1 / len(ratios)) <= 0.5


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WAYS)
def test_steps_are_recorded_of_every_way(name: str, ranks: int) -> None:
    steps = by_way(name, "step", ranks)
    assert list(steps) == WAYS[name]
    for row in steps.values():
        assert row["rounds"] >= 15
        assert 0 < row["ms"][0] <= row["ms"][1] <= row["ms"][2]
        assert row["ratio"] == pytest.approx(
            row["ms"][1] / steps["torch"]["ms"][1], rel=2e-3, abs=2e-3
        )


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_take_about_as_long_as_torch_s_and_what_leaves_early_is_hidden(ranks: int) -> None:
    ddp, zero, fsdp = (by_way(name, "step", ranks) for name in WAYS)
    assert ddp["minidist"]["ratio"] <= 1.05
    for lesson, library in (
        (ddp["overlapped"], ddp["minidist"]),
        (zero["from_scratch, stage 1"], zero["stage 1, local"]),
        (zero["from_scratch, stage 2"], zero["stage 2"]),
        (fsdp["from_scratch"], fsdp["fsdp"]),
    ):
        assert lesson["ratio"] <= 1.3 * library["ratio"], lesson
    torchs = min(zero["torch"]["ratio"], zero["torch, views"]["ratio"])
    assert zero["stage 1"]["ratio"] <= 1.05 * torchs
    assert fsdp["fsdp"]["ratio"] <= 1.0
    assert fsdp["fsdp, kept"]["ratio"] <= fsdp["torch, kept"]["ratio"]
    shares = {way: row["share"] for way, row in by_way("ddp", "hidden", ranks).items()}
    assert shares["minidist"] > 0.1


@pytest.mark.parametrize("way", ["minidist", "torch"])
def test_bucket_views_save_one_copy_of_the_gradients(way: str) -> None:
    rows = [row for row in rows_of("ddp", "memory") if row["way"] == way]
    plain, views = sorted(rows, key=lambda row: row["views"])
    size = plain["gradient_bytes"]
    assert (plain["views"], views["views"]) == (False, True)
    assert plain["held_bytes"] == pytest.approx(2 * size, rel=0.01), "gradients and buckets"
    assert views["held_bytes"] == pytest.approx(size, rel=0.01), "buckets alone"
    assert plain["peak_bytes"] - views["peak_bytes"] > 0.7 * size


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_holds_what_is_predicted_and_no_more_than_under_torch_s(ranks: int) -> None:
    zero, fsdp = (by_way(name, "memory", ranks) for name in ("zero", "fsdp"))
    assert zero["stage 1, local"]["held_bytes"] == zero["stage 2"]["held_bytes"], "the same slices"
    for way, row in [*zero.items(), *fsdp.items()]:
        assert 0 < row["held_bytes"] < row["peak_bytes"]
        if way != "stage 1, local" and not way.startswith("torch"):
            assert row["held_bytes"] == pytest.approx(row["predicted_held_bytes"], rel=0.01), way
            # Above: AdamW's temporary tensors. Below: what could be in flight at once was not.
            assert 0.85 < row["peak_bytes"] / row["predicted_peak_bytes"] < 1.2, way
    for ours, theirs in (
        (zero["stage 1"], zero["torch"]),
        (fsdp["fsdp"], fsdp["torch"]),
        (fsdp["fsdp, kept"], fsdp["torch, kept"]),
    ):
        assert ours["held_bytes"] <= 1.01 * theirs["held_bytes"]
        assert ours["peak_bytes"] <= 1.05 * theirs["peak_bytes"]


def test_ddp_and_fsdp_are_timed_for_models_of_four_sizes() -> None:
    ways = [(row["width"], row["way"]) for row in rows_of("fsdp", "size")]
    assert ways == [(width, way) for width in (32, 64, 128, 256) for way in ("ddp", "fsdp")]


def test_the_more_is_sharded_the_larger_a_model_fits() -> None:
    rows = rows_of("limit", "largest model")
    layers = {(row["strategy"], row["checkpointed"]): row["layers"] for row in rows}
    for again in (False, True):
        depths = [layers[strategy, again] for strategy in ("ddp", "zero1", "zero2", "fsdp")]
        assert depths == sorted(set(depths)), "each stage fits deeper ones than the one before"
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        assert layers[strategy, True] > layers[strategy, False]
    for row in rows:
        assert 0.75 * row["predicted_layers"] <= row["layers"] <= row["predicted_layers"] + 1


def test_rounds_send_less_and_make_less_of_a_sample() -> None:
    rows = rows_of("local_sgd", "curve")
    plain = {row["every"]: row for row in rows if row["way"] in ("DDP", "averages")}
    assert [*plain] == [1, 10, 100]
    for every, row in plain.items():
        assert row["steps"] == list(range(0, 1001, 100))
        sent = 2 * 3 / 4 * 4 * row["parameters"] * 1000 / every
        assert row["sent_bytes"][-1] == pytest.approx(sent, rel=1e-3)
        assert row["loss"][0] > 4 > row["loss"][-1]
    ends = [row["loss"][-1] for row in plain.values()]
    assert ends == sorted(ends)
    diloco = [(row["every"], row["outer"]) for row in rows if row["way"] == "DiLoCo"]
    assert sorted(diloco) == [(n, [0.7, m]) for n in (10, 100) for m in (0.5, 0.9)]


def test_plans_have_the_bytes_exactly_and_the_memory_nearly() -> None:
    rows = rows_of("plan", "plan")
    ways = ["single", "ddp", "zero1", "zero2", "fsdp"]
    two = [(row["width"], row["link"], row["way"]) for row in rows if row["ranks"] == 2]
    assert two == list(product((64, 128, 256), ("own", "emulated"), ways))
    four = [(row["link"], row["way"]) for row in rows if row["ranks"] == 4]
    assert four == list(product(("own", "emulated"), [*ways, "hsdp"]))
    for row in rows:
        assert row["sent_bytes"] == row["predicted_sent_bytes"], row
        assert 0.85 < row["peak_bytes_factor"] < 1.2, row
        assert row["ms_factor"] == pytest.approx(row["predicted_ms"] / row["ms"], rel=2e-3)
