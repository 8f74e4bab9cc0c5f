"""The recorded benchmarks of ZeRO and FSDP are whole, and show what the course promises.

A record is data, so nothing here depends on the clock: `make bench` makes it, on a quiet machine.
"""

from typing import Any

import pytest

from course.pages.recorded import recorded

ZERO = [
    "torch",
    "torch, views",
    "ddp",
    "stage 1",
    "stage 1, native",
    "stage 1, local",
    "stage 2",
    "stage 2, native",
]
FSDP = [
    "torch",
    "torch, kept",
    "ddp",
    "fsdp",
    "fsdp, flat",
    "fsdp, kept",
    "fsdp, no prefetch",
    "fsdp, native",
]
Row = dict[str, Any]


def rows_of(name: str, what: str, ranks: int | None = None) -> list[Row]:
    rows = [row for row in recorded(name)["rows"] if row["what"] == what]
    return [row for row in rows if ranks in (None, row["ranks"])]


def by_way(name: str, what: str, ranks: int) -> dict[str, Row]:
    return {row["way"]: row for row in rows_of(name, what, ranks)}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("name", "ways"), [("zero", ZERO), ("fsdp", FSDP)])
def test_steps_are_recorded_of_every_way(name: str, ways: list[str], ranks: int) -> None:
    steps = by_way(name, "step", ranks)
    assert list(steps) == ways
    for row in steps.values():
        assert row["rounds"] >= 15
        assert 0 < row["ms"][0] <= row["ms"][1] <= row["ms"][2]
        assert row["ratio"] == pytest.approx(row["ms"][1] / steps["torch"]["ms"][1], abs=2e-3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_zero_1_takes_at_most_a_twentieth_more_than_torch_s(ranks: int) -> None:
    steps = by_way("zero", "step", ranks)
    torchs = min(steps["torch"]["ratio"], steps["torch, views"]["ratio"])
    assert steps["stage 1"]["ratio"] <= 1.05 * torchs


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp_takes_no_longer_than_torch_s(ranks: int) -> None:
    steps = by_way("fsdp", "step", ranks)
    assert steps["fsdp"]["ratio"] <= 1.0
    assert steps["fsdp, kept"]["ratio"] <= steps["torch, kept"]["ratio"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["zero", "fsdp"])
def test_a_rank_holds_what_is_predicted(name: str, ranks: int) -> None:
    rows = by_way(name, "memory", ranks)
    assert len(rows) >= 6
    for way, row in rows.items():
        assert 0 < row["held_bytes"] < row["peak_bytes"]
        if way == "stage 1, local":  # the same slices; no formula for its peak
            assert row["held_bytes"] == rows["stage 2"]["held_bytes"]
        elif not way.startswith("torch"):
            assert row["held_bytes"] == pytest.approx(row["predicted_held_bytes"], rel=0.01), way
            # Above: AdamW's temporary tensors. Below: what could be in flight at once was not.
            assert 0.85 < row["peak_bytes"] / row["predicted_peak_bytes"] < 1.2, way


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_takes_no_more_memory_than_under_torch_s(ranks: int) -> None:
    zero, fsdp = by_way("zero", "memory", ranks), by_way("fsdp", "memory", ranks)
    for ours, theirs in (
        (zero["stage 1"], zero["torch"]),
        (fsdp["fsdp"], fsdp["torch"]),
        (fsdp["fsdp, kept"], fsdp["torch, kept"]),
    ):
        assert ours["held_bytes"] <= 1.01 * theirs["held_bytes"]
        assert ours["peak_bytes"] <= 1.05 * theirs["peak_bytes"]


def test_ddp_and_fsdp_are_timed_for_models_of_four_sizes() -> None:
    rows = rows_of("fsdp", "size")
    ways = [(row["width"], row["way"]) for row in rows]
    assert ways == [(width, way) for width in (32, 64, 128, 256) for way in ("ddp", "fsdp")]
    assert all(row["parameters"] > 0 and row["ms"][1] > 0 for row in rows)


def test_a_limit_that_ddp_s_state_fills_leaves_fsdp_room_for_a_batch() -> None:
    rows = rows_of("fsdp", "limit")
    ddp, fsdp = ([row["batch"] for row in rows if row["way"] == way] for way in ("ddp", "fsdp"))
    assert len(ddp) == len(fsdp) == 3
    assert ddp[0] <= fsdp[0]
    assert 0 < ddp[1] < fsdp[1]
    assert ddp[2] == 0 < fsdp[2]
    assert all(row["peak"] <= row["limit"] for row in rows)


def test_the_more_is_sharded_the_larger_a_model_fits() -> None:
    rows = rows_of("limit", "largest model")
    layers = {(row["strategy"], row["checkpointed"]): row["layers"] for row in rows}
    for again in (False, True):
        depths = [layers[strategy, again] for strategy in ("ddp", "zero1", "zero2", "zero3")]
        assert depths == sorted(set(depths)), "each stage fits deeper ones than the one before"
    for strategy in ("ddp", "zero1", "zero2", "zero3"):
        assert layers[strategy, True] > layers[strategy, False]
    for row in rows:
        assert 0.75 * row["predicted_layers"] <= row["layers"] <= row["predicted_layers"] + 1
