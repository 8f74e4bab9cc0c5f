"""The recorded benchmarks are whole, and show the speed that the course promises.

A record is data, so nothing here depends on the clock: `make bench` makes it, on a quiet machine.
"""

import json
import math
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))
MIB = 1 << 20


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


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
@pytest.mark.parametrize("size", [MIB, 4 * MIB, 16 * MIB, 64 * MIB])
def test_the_ring_keeps_up_with_the_backend_from_one_mebibyte(ranks: int, size: int) -> None:
    rows = recorded("ring")["rows"]
    (row,) = (row for row in rows if (row["ranks"], row["bytes"]) == (ranks, size))
    assert row["rounds"] >= 15
    assert row["ratio"] == pytest.approx(row["ring_ms"][1] / row["native_ms"][1], abs=2e-3)
    assert row["ratio"] <= 1.2, "what two runs of one thing may differ by, on two cores, included"


def test_all_in_all_the_ring_is_within_a_tenth_of_the_backend() -> None:
    ratios = [row["ratio"] for row in recorded("ring")["rows"] if row["bytes"] >= MIB]
    assert len(ratios) == 3 * 4, "no large message is left out"
    assert math.prod(ratios) ** (1 / len(ratios)) <= 1.1


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
