"""A search of grids as it is asked, and what it says: sentences, JSON, refusals."""

import json
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import minidist
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
from minidist.planner.search import Search, frontier
from minidist.planner.sizes import Sizes
from tests.support.refusals import all_refused

TINY = Sizes.llama(6, 1024, 4096, 8, 2, 32_000, 4096)


def test_the_medium_job_on_eight_nodes_needs_no_more_than_fsdp() -> None:
    found = minidist.search(MEDIUM, "H100", 64, 64)
    first, second = found.best[:2]
    assert first.grid.strategy == "fsdp_kept"
    assert first.grid.tensor * first.grid.pipeline * first.grid.context == 1
    planned = minidist.plan(MEDIUM, "H100", 64).forecasts["fsdp_kept"]
    assert first.seconds == planned.overlapped
    assert first.forecast.peak == planned.peak
    lost = second.seconds - first.seconds
    assert sum(second.spent.values()) - sum(first.spent.values()) == pytest.approx(lost)


def test_the_large_job_is_split_each_way_and_fits() -> None:
    found = minidist.search(LARGE, "H100", 16_384, 2048)
    first = found.best[0]
    assert first.grid.tensor > 1
    assert first.grid.pipeline > 1
    assert first.forecast.peak <= 0.9 * H100.memory
    assert [each.seconds for each in found.best] == sorted(each.seconds for each in found.best)
    assert len({each.grid[2:6] for each in found.best}) == 5, "each splits the model another way"
    assert found.tried > 1000 > 5 * found.priced


def test_orders_and_context_are_what_was_allowed() -> None:
    found = minidist.search(LARGE, "H100", 512, 64, orders=("1f1b",), context=1)
    assert {each.grid.order for each in found.best} == {"1f1b"}
    assert {each.grid.context for each in found.best} == {1}


def test_twice_of_what_binds_helps_and_of_what_is_idle_does_not() -> None:
    said = " ".join(minidist.search(MEDIUM, "H100", 64, 64).reasons)
    assert "twice the compute 9" in said
    assert "twice the NVLink 0%" in said
    assert "The second takes" in said
    assert "it loses" in said


def test_each_grid_says_what_binds_it_and_the_best_where_its_groups_lie() -> None:
    found = minidist.search(LARGE, "H100", 16_384, 2048)
    first, fourth = found.best[0], found.best[3]
    share = first.spent["tensor"] / first.seconds
    assert first.binds.endswith(f"%, tensor parallelism {share:.0%}")
    assert re.search(r"^compute \d+%; memory: would need \d+ GB with nothing re", fourth.binds)
    assert "Tensor 8 fills an NVLink domain of 8 GPUs; context, data and pipeline" in str(found)
    told = found.as_dict()["best"]
    assert [each["binds"] for each in told] == [each.binds for each in found.best]
    flat = " ".join(repr(found).split())
    assert all(f"> {each.binds}" in flat for each in found.best)


def test_a_share_that_rounds_to_nothing_is_not_named() -> None:
    found = minidist.search(SMALL, "H100", 8, 64)
    assert found.best[0].binds == "compute 100%"
    assert " 0%" not in found.reasons[0]


def test_what_is_bought_is_spent_on_another_grid() -> None:
    sizes = Sizes.mixture(61, 7168, 2048, 56, 8, 129_280, 4096, experts=256, active=8)
    found = minidist.search(sizes, "H100", 2048, 15_360)
    quick = H100._replace(flops=2 * H100.flops)
    again = minidist.search(sizes, quick, 2048, 15_360).best[0]
    gain = found.best[0].seconds / again.seconds - 1
    assert f"twice the compute {gain:.0%}," in found.reasons[-1]


def test_a_module_is_searched_as_its_sizes_are() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    sample = torch.zeros(4, 64)
    found = minidist.search(net, "H100", 8, 64, sample=sample)
    assert found.best[0].grid == minidist.search(Sizes.of(net, sample), "H100", 8, 64).best[0].grid
    assert {each.grid.context for each in found.best} == {1}, "no keys and values are known"


def test_one_gpu_and_a_node_of_one_have_their_grids() -> None:
    (alone,) = minidist.search(TINY, "H100", 1, 8).best
    assert alone.grid.strategy == "single"
    single = minidist.search(TINY, H100._replace(per_node=1), 4, 8)
    assert {each.grid.expert for each in single.best} == {1}


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    found = minidist.search(LARGE, "H100", 64, 64)
    assert found.best == ()
    said = " ".join(found.reasons)
    assert "Nothing fits" in said
    assert "which is 49" in said
    assert "It would fit on 128 of them." in said
    assert "H200 SXM" in said
    assert "Nothing fits" in str(found)


def test_samples_that_no_grid_divides_are_a_sentence() -> None:
    found = minidist.search(TINY, "H100", 7, 1)
    assert found.best or "No grid has 7 ranks and 1 samples" in str(found)
    narrow = TINY._replace(width=1023, units=1, keys=0.0)
    (said,) = minidist.search(narrow, "H100", 5, 3).reasons
    assert said.startswith("No grid has 5 ranks and 3 samples")


def test_the_json_has_all_numbers() -> None:
    found = minidist.search(SMALL, "H100", 16, 16)
    told = json.loads(json.dumps(found.as_dict()))
    assert [each["seconds"] for each in told["best"]] == [each.seconds for each in found.best]
    assert told["best"][0]["grid"]["strategy"] == found.best[0].grid.strategy
    assert told["reasons"] == [*found.reasons]


def test_the_text_has_a_line_for_each_grid_and_fits_a_terminal() -> None:
    text = str(minidist.search(LARGE, "H100", 16_384, 2048))
    assert text.count("pipeline") >= 5
    assert all(len(line) <= 80 for line in text.splitlines())


def test_with_less_memory_a_step_takes_longer() -> None:
    found = frontier(MEDIUM, "H100", 64, 64)
    assert len(found) > 5
    assert [bytes_ for bytes_, _ in found] == sorted(bytes_ for bytes_, _ in found)
    seconds = [each.seconds for _, each in found]
    assert seconds == sorted(seconds, reverse=True)
    assert all(each.forecast.peak <= limit for limit, each in found)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ranks": 0}, "ranks must be at least 1, got 0"),
    ({"samples": 0}, "samples must be at least 1, got 0"),
    ({"samples": 1.5}, "samples: expected a whole number, got 1.5"),
    ({"context": 0}, "context must be at least 1, got 0"),
    ({"orders": ()}, "orders: expected some of 1f1b, zero_bubble, dualpipe, got \\(\\)"),
    ({"orders": ("2f2b",)}, "orders: expected some of 1f1b"),
    ({"model": "large"}, "model: expected an nn.Module or Sizes, got str"),
    ({"hardware": "V100"}, f"hardware: expected .* one of {', '.join(ACCELERATORS)}"),
    ({"optimizer": "lion"}, "optimizer: expected one of"),
    ({"precision": "fp4"}, "precision: expected bf16 or fp8 on H100 SXM, got 'fp4'"),
    ({"hardware": "A100", "precision": "fp8"}, "precision: expected bf16 on A100 SXM, got 'fp8'"),
    (
        {"model": TINY._replace(matrices=()), "optimizer": "muon"},
        "optimizer: expected none that needs matrices that `model` lacks: 'muon'",
    ),
    ({"policy": "bf16"}, "policy: expected a DtypePolicy"),
]  # fmt: skip


def test_a_question_that_makes_no_sense_is_refused() -> None:
    def asked(**how: Any) -> Search:
        return minidist.search(
            **{"model": TINY, "hardware": "H100", "ranks": 8, "samples": 8} | how
        )

    rows = [(partial(asked, **how), said) for how, said in BAD]
    all_refused(rows, ValueError, TypeError)
