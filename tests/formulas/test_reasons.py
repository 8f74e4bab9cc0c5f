"""What binds a grid, held against the prices of its neighbors, and where its groups lie."""

import pytest

from minidist.formulas import grids
from minidist.formulas.inputs import Grid, Question
from minidist.formulas.memory import memory
from minidist.formulas.reasons import binds, neighbors, placed
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
from minidist.planner.planner import ROOM
from minidist.planner.sizes import Sizes


def question(job: Sizes, ranks: int, samples: int) -> Question:
    return Question(job, H100, bytes_each(AUTOCAST, "adam"), ranks, samples, ROOM * H100.memory)


def spent(asked: Question, grid: Grid) -> dict[str, float]:
    step = grids.step_of(asked, grid)
    return grids.spent(step, grid.strategy, forecast(step, grid.strategy))


def test_a_part_of_the_step_binds_where_no_neighbor_is_kept_out_by_memory() -> None:
    asked = question(LARGE, 16_384, 2048)
    for grid, part in (
        (Grid("fsdp_kept", 64, 8, 16, 2, interleaved=8), "tensor"),
        (Grid("fsdp_kept", 128, 8, 16, 1, order="zero_bubble"), "bubble"),
    ):
        takes = spent(asked, grid)
        assert takes[part] == max(takes[name] for name in takes if name != "compute")
        assert binds(asked, grid, takes)["part"] == part


@pytest.mark.parametrize(
    ("job", "grid", "ways", "how"),
    [
        (LARGE, Grid("fsdp_kept", 128, 8, 16, recompute="full"), (), "nothing recomputed"),
        (SMALL, Grid("fsdp", 16_384, recompute="full"), (), "ddp"),
        (MEDIUM, Grid("fsdp", 16_384), ("fsdp",), "micro-batches of 2"),
    ],
)
def test_memory_binds_where_a_faster_neighbor_does_not_fit(
    job: Sizes, grid: Grid, ways: tuple[str, ...], how: str
) -> None:
    asked = question(job, 16_384, 2**17)
    asked = asked._replace(ways=ways or asked.ways)
    takes = spent(asked, grid)
    found = binds(asked, grid, takes)
    assert found["how"] == how
    (other,) = (other for said, other in neighbors(asked, grid) if said == how)
    step = grids.step_of(asked, other)
    assert found["needs"] == memory(step, other.strategy)["peak"] > asked.limit
    assert forecast(step, other.strategy)["overlapped"] < 0.99 * sum(takes.values())
    assert binds(asked._replace(limit=found["needs"]), grid, takes)["how"] != how, "it fits"


def test_neighbors_are_grids_of_the_same_degrees_that_the_search_knows() -> None:
    asked = question(LARGE, 2048, 256)
    known = {grid._replace(strategy="") for grid in grids.variants(asked)}
    for grid in [*known][::37]:
        for how, other in neighbors(asked, grid._replace(strategy="zero1")):
            assert other._replace(strategy="") in known, (grid, how)
            assert grids.same_degrees(grid, other)
            assert other != grid


FILLS = "an NVLink domain of 8 GPUs"


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (Grid("", 64, 8, 16, 2), f"Tensor 8 fills {FILLS}; context, data and pipeline cross"),
        (Grid("", 64, 2, 1, 4), f"Tensor 2 and context 4 fill {FILLS}; data crosses"),
        (Grid("", 64, 2, 2), f"Tensor 2 stays inside {FILLS}; data and pipeline cross"),
        (Grid("", 64, 4, 1, 4, 2), f"Tensor 4 and expert 2 fill {FILLS}; context and data cross"),
        (
            Grid("", 64, 2, 4, nearer="pipeline"),
            f"Tensor 2 and pipeline 4 fill {FILLS}; data crosses",
        ),
        (
            Grid("", 64, 1, 4, 4, nearer="pipeline"),
            f"Pipeline 4 stays inside {FILLS}; context and data cross",
        ),
        (Grid("", 64, 1, 1, 1, 4), f"Expert 4 stays inside {FILLS}; data crosses"),
        (Grid("", 64), f"No group fits in {FILLS}: data crosses"),
        (Grid("", 4, 2), f"All ranks share {FILLS}, and nothing crosses"),
    ],
)
def test_a_sentence_says_which_groups_stay_in_a_domain(grid: Grid, said: str) -> None:
    assert placed(grid, 8) == f"{said} the network."
