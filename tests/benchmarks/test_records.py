"""The recorded benchmarks are whole, and show the speed that the course promises.

A record is data, so nothing here depends on the clock: `make bench` makes it, on a quiet machine.
"""

import math
import re
from datetime import date
from statistics import median
from typing import Any

import pytest

from course.pages.recorded import RESULTS, recorded

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))
MIB = 1 << 20


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
def test_from_one_mebibyte_the_ring_is_within_a_tenth_of_the_backend(ranks: int) -> None:
    rows = [row for row in recorded("ring")["rows"] if row["ranks"] == ranks]
    rows = [row for row in rows if row["bytes"] >= MIB]
    assert [row["bytes"] for row in rows] == [MIB, 4 * MIB, 16 * MIB, 64 * MIB]
    for row in rows:
        assert row["rounds"] >= 15
        assert len(row["ring_ms"]) == len(row["native_ms"]) >= 5
        pairs = zip(row["ring_ms"], row["native_ms"], strict=True)
        assert row["ratio"] == pytest.approx(median(a / b for a, b in pairs), abs=2e-3)
        assert row["ratio"] <= 1.1, row


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


DDP = ["torch", "alone", "overlapped", "bucketed", "flat", "naive", "overlapped, native"]


def of_ddp(what: str, ranks: int) -> dict[str, dict[str, Any]]:
    rows = recorded("ddp")["rows"]
    return {row["way"]: row for row in rows if (row["what"], row["ranks"]) == (what, ranks)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_under_our_ddp_takes_at_most_a_twentieth_more_than_under_torch_s(
    ranks: int,
) -> None:
    rows = of_ddp("step", ranks)
    assert list(rows) == DDP
    for row in rows.values():
        assert row["rounds"] >= 15
        assert 0 < row["ms"][0] <= row["ms"][1] <= row["ms"][2]
        assert row["ratio"] == pytest.approx(row["ms"][1] / rows["torch"]["ms"][1], abs=2e-3)
    assert rows["overlapped"]["ratio"] <= 1.05


@pytest.mark.parametrize("ranks", [2, 4])
def test_only_what_leaves_during_backward_is_hidden_under_it(ranks: int) -> None:
    shares = {way: row["share"] for way, row in of_ddp("hidden", ranks).items()}
    assert shares.pop("overlapped") > 0.1
    assert shares == {"bucketed": 0, "flat": 0, "naive": 0}


@pytest.mark.parametrize("way", ["minidist", "torch"])
def test_bucket_views_save_one_copy_of_the_gradients(way: str) -> None:
    rows = [row for row in recorded("ddp")["rows"] if (row["what"], row["way"]) == ("memory", way)]
    plain, views = sorted(rows, key=lambda row: row["views"])
    size = plain["gradient_bytes"]
    assert (plain["views"], views["views"]) == (False, True)
    assert plain["held_bytes"] == pytest.approx(2 * size, rel=0.01), "gradients and buckets"
    assert views["held_bytes"] == pytest.approx(size, rel=0.01), "buckets alone"
    assert plain["peak_bytes"] - views["peak_bytes"] > 0.7 * size
