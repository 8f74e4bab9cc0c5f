"""The roofline of a step; the ladder of the chapter on choosing is in tests/planner."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from course.pages.price import ask
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
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


def test_the_ladder_of_the_chapter_has_fsdp_with_weights_kept_as_a_rung() -> None:
    small, again = plan(SMALL, H100, 8), plan(SMALL, H100, 8, checkpointing=True)
    assert (small.best, again.best) == ("fsdp_kept", "ddp")
    assert round(small.forecasts["fsdp_kept"].peak / 1e9) == 47
    assert round(small.forecasts["zero2"].peak / 1e9) == 68
    medium = plan(MEDIUM, H100, 64)
    assert medium.best == "fsdp_kept"
    assert round(medium.forecasts["fsdp_kept"].peak / 1e9) == 75
    assert plan(MEDIUM, H100, 8).best == "fsdp"
    assert plan(LARGE, H100, 16_384, checkpointing=True).best is None


def test_the_small_job_on_our_h200_is_predicted_at_the_h200_s_rates() -> None:
    rows = json.loads((RECORD.parent / "gpu.json").read_text())["rows"]
    took = {}
    for row in rows:
        if row.get("what") == "memory" and "levels" in row:
            how = {"gpus": 1, "gpu": "H200", "tokens": row["tokens"]}
            how |= {"checkpointing": float(row["checkpointed"]), "views": "views" in row["way"]}
            how |= {"strategy": row["way"].split(",")[0], "foreach": "fused" not in row["way"]}
            assert ask("peak", **how) == pytest.approx(row["peak_bytes"], rel=0.0025)
            key = row["way"], row["tokens"], row["checkpointed"]
            took[key] = row["ms"][1] / 1e3 / ask("step", **how)
    assert took["single", 8192, True] == pytest.approx(1.03, abs=0.02)
    assert took["single", 8192, False] == pytest.approx(1.10, abs=0.02)
    assert took["ddp, views, fused", 2048, False] == pytest.approx(1.26, abs=0.02)
    assert took["ddp, views", 2048, False] > 1.6, "AdamW's launches"


def test_a_step_of_llama_3_s_grid_takes_what_its_published_utilization_means() -> None:
    grid = {"job": "large", "gpus": 16_384, "tokens": 16 * 8192, "strategy": "zero2"}
    grid |= {"tensor": 8, "pipeline": 16, "micro_batches": 16, "interleaved": 8}
    attention = 12 * 126 * 8192 * 16_384  # operations of a token, in full, forward and backward
    operations = 6 * (LARGE.parameters - 128_256 * 16_384) + attention
    published = operations * 16 * 2**20 / 16_384 / (0.41 * 989e12)
    assert published == pytest.approx(6.63, abs=0.01)
    assert ask("step", **grid) == pytest.approx(1.153 * published, rel=0.005)
    assert ask("mfu", **grid) == pytest.approx(0.41 / 1.153, abs=0.005)


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
