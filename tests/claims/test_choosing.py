"""The claims of the chapter on choosing: the ladder, and the roofline of a step."""

import json
from pathlib import Path
from statistics import median

import pytest

from minidist.planner.hardware import H100
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "plan.json"
SEVEN = Sizes.gpt(34, 4096, 32_000, 2048)
SEVENTY = Sizes.gpt(80, 8448, 128_000, 8192)


# ---- F1 ----


@pytest.mark.claim("F1")
def test_the_ladder_is_walked_from_one_gpu_to_splitting_the_model() -> None:
    small = Sizes.gpt(12, 768, 50_257, 1024)
    assert plan(small, "H100", 1).best == "single"  # fits, and there is nothing faster
    found = plan(small, "H100", 8, batch=16)
    assert found.best == "ddp"  # fits, and one GPU is slow
    assert found.forecasts["single"].fits
    found = plan(SEVEN, "H100", 8, batch=4)
    assert found.best == "zero2"  # neither fits
    assert not found.forecasts["single"].fits
    assert not found.forecasts["ddp"].fits
    assert plan(SEVENTY, "H100", 64, checkpointing=True).best == "fsdp"
    found = plan(SEVENTY, "H100", 4096)
    assert found.best is None  # one sample's activations
    huge = Sizes.gpt(100, 65_536, 128_000, 8192)
    assert "Tensor parallelism splits" in " ".join(plan(huge, "H100", 4096).reasons)


@pytest.mark.claim("F1")
def test_the_rung_depends_on_batch_checkpoints_and_links() -> None:
    assert plan(SEVEN, "H100", 8, batch=1).best == "fsdp"
    assert plan(SEVEN, "H100", 8, batch=4, checkpointing=True).best == "zero1"
    slow = H100._replace(nvlink=1e7)  # then one GPU is as fast as eight
    assert plan(Sizes.gpt(12, 768, 50_257, 1024), slow, 8).best == "single"
    card = H100._replace(network=H100.network / 80)  # and one where hybrid sharding wins
    found = plan(SEVEN, card, 16, batch=4).forecasts
    assert found["hsdp"].tokens_per_second > 1.2 * found["fsdp"].tokens_per_second


# ---- F2 ----


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
