"""The roofline of a step; the ladder of the chapter on choosing is in tests/planner."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from minidist.planner.hardware import H100
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "plan.json"
SEVEN = Sizes.gpt(34, 4096, 32_000, 2048)


@pytest.mark.claim("F2")
def test_predicted_with_overlap_a_step_takes_the_longest_and_without_it_the_sum() -> None:
    for tokens in (64, 1024, 4096, 2**20):
        sizes = SEVEN._replace(operations=SEVEN.operations * tokens / 2048, tokens=tokens)
        each = plan(sizes, H100._replace(network=H100.network / 8), 16).forecasts["fsdp"]
        busy = each.compute, each.memory_traffic, each.communication
        assert max(busy) <= each.overlapped < 1.1 * max(busy)
        computing = max(busy[:2])
        assert computing + each.communication <= each.sequential < 1.1 * sum(busy)


@pytest.mark.claim("F2")
def test_recorded_where_cores_carry_the_messages_a_step_takes_nearly_the_sum() -> None:
    rows = [row for row in json.loads(RECORD.read_text())["rows"] if row["what"] == "plan"]
    own = [row for row in rows if row["link"] == "own" and row["way"] != "single"]
    added, longest = (
        median(of(row["predicted_parts_ms"].values()) / row["ms"] for row in own)
        for of in (sum, max)
    )
    assert longest < 0.8
    assert abs(1 - added) < abs(1 - longest)


def test_recorded_plan_is_right_on_bytes_and_may_prefer_fsdp_where_ddp_is_faster() -> None:
    rows = [row for row in json.loads(RECORD.read_text())["rows"] if row["what"] == "plan"]
    assert all(row["sent_bytes"] == row["predicted_sent_bytes"] for row in rows)
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["way"] != "single":
            groups.setdefault((row["ranks"], row["width"], row["link"]), []).append(row)
    lost = []
    for ways in groups.values():
        told, best = (min(ways, key=lambda row: row[key]) for key in ("predicted_ms", "ms"))
        lost.append((told["ms"] / best["ms"], told["way"], best["way"]))
    most, told_way, best_way = max(lost)
    assert most > 1.1
    assert told_way in ("fsdp", "hsdp")
    assert best_way == "ddp"
