"""The worked problems of the chapter on grids: what its sentences say of rules and searches."""

from itertools import product

import pytest

from course.chapters.grid import problem
from course.chapters.grid.figures import KINDS, kind, rates_kept
from minidist.formulas import grids, rules
from minidist.formulas.compute import PIECE
from minidist.formulas.inputs import Grid
from minidist.formulas.links import message
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
from minidist.planner.search import Search, search


def test_the_chart_s_borders_are_as_its_alt_text_and_the_rules_say() -> None:
    found = [[kind(grid) for grid in row] for row in problem.regimes()]
    assert {*found[-1]} == {"data alone"}
    assert {*found[-2]} == {"context"}
    assert found[2] == ["tensor"] * 4 + ["pipeline"] * 2
    assert found[1] == ["tensor"] * 3 + ["pipeline"] * 3
    assert found[0] == ["pipeline"] * 6
    for tokens, row in zip(problem.TOKENS, found, strict=True):
        for ranks, name in zip(problem.CLUSTERS, row, strict=True):
            alone, unsplit, pays = (rule(ranks) for rule in problem.BORDERS)
            assert (name == "data alone") == (tokens >= alone)
            assert (name in ("data alone", "context")) == (tokens >= unsplit)
            assert (name == "pipeline") == (tokens < pays)
    assert {name for row in found for name in row} == {*KINDS}


def test_on_few_gpus_replicas_come_first_then_sequences_then_layers() -> None:
    said, (full, half, quarter) = problem.small_numbers(), map(problem.small_grids, problem.BATCHES)
    for found, best in ((full, (1, 1)), (half, (2, 1)), (quarter, (2, 2))):
        assert min(found, key=lambda ways: found[ways]) == best
    assert half[1, 2] / half[2, 1] - 1 < 0.1 < said["small_tensor"]
    assert said["small_tensor"] == pytest.approx(said["medium_2"], abs=0.005)
    for samples, found in zip(problem.BATCHES, (full, half, quarter), strict=True):
        first = problem.fastest("medium", problem.FEW_GPUS, samples)
        assert first.grid.pipeline == 1
        assert first.seconds == min(found.values())
        assert max(problem.SMALL_WAYS, key=lambda ways: found.get(ways, 0.0)) == (1, 8)
    assert problem.small()[0][1:] == [f"{full[1, 1]:.2f}", "–", "–"]


@pytest.mark.claim("J7")
def test_a_pipeline_inside_nodes_never_wins() -> None:
    tried, among = 0, 0
    for job, ranks in product((SMALL, MEDIUM, LARGE), (64, 1024, 16_384)):
        for samples in (ranks // 8, ranks // 2, ranks, 4 * ranks):
            best = grids.search(problem.question(job, ranks, samples))["best"]
            tried += 1
            among += any(each["grid"].nearer == "pipeline" for each in best)
            assert all(each["grid"].nearer == "data" for each in best[:1]), (job, ranks, samples)
    assert tried == 36
    assert among > 5, "it is tried"


@pytest.fixture(scope="module")
def found() -> Search:
    return search(LARGE, "H100", problem.GPUS, problem.SEQUENCES)


def test_the_fastest_grid_is_read_by_the_rules_as_the_page_reads_it(found: Search) -> None:
    ways, said = found.best[0].grid, problem.numbers(found)
    degrees = ways.data, ways.context, ways.tensor, ways.pipeline, ways.interleaved
    assert degrees == (64, 2, 8, 16, 8)
    assert 8192 / ways.context == said["least_piece"]
    assert said["wider"] < 0.9 * H100.memory / 1e9 < said["narrower"]
    assert said["keeps"] < ways.tensor * ways.pipeline
    assert said["bubble_own"] == 2 * said["bubble_best"]
    assert 0.05 < said["gain"] < 0.15


def test_the_neighbors_lose_what_the_page_says(found: Search) -> None:
    first = found.best[0]
    others = {(each.grid.context, each.grid.pipeline): each for each in found.best}
    longer, shorter, alone = others[2, 32], others[2, 8], others[1, 16]
    assert longer.grid.interleaved == first.grid.interleaved / 2
    assert longer.spent["bubble"] == pytest.approx(2 * first.spent["bubble"], rel=0.05)
    for each in (shorter, alone):
        assert each.grid.recompute == "selective"
        assert each.bound["how"] == "nothing recomputed"
    assert alone.grid.data == 128


def test_a_step_by_hand_takes_nearly_what_the_search_says(found: Search) -> None:
    """What is left out is less than a tenth; the bubble and its messages are within a twentieth."""
    best = found.best[0]
    own = problem.bill(best.grid)
    assert 0.9 < own.total / best.seconds < 1
    assert own.bubble == pytest.approx(best.spent["bubble"], rel=0.05)
    assert own.borders == pytest.approx(best.spent["borders"], rel=0.05)
    rows = {name: both for name, *both in problem.bills(found)}
    assert rows["a step"] == [round(own.total, 2), round(best.seconds, 2)]
    assert rows["all of these"][1] == pytest.approx(
        best.spent["compute"] + best.spent["tensor"], abs=0.01
    )


def test_halving_sequences_costs_less_than_halving_layers_as_far_as_the_page_says() -> None:
    said = problem.example()
    assert said["context_2"] < said["large_2"]
    assert LARGE.tokens / 2 > said["shortest"] > LARGE.tokens / 4


def test_narrow_matrices_cost_the_medium_job_more_than_messages() -> None:
    for tensor in (2, 4, 8):
        sent, narrow = rules.tensor_loss(MEDIUM, H100, tensor)
        assert narrow > sent


def test_a_layer_on_an_h100_kept_the_rate_that_the_rule_leaves_it() -> None:
    """Within five hundredths of the unsplit rate."""
    jobs = {LARGE.width: LARGE, MEDIUM.width: MEDIUM}
    for width, kept in rates_kept().items():
        if width in jobs:
            for ranks, share in kept.items():
                rule = 1 / (1 + rules.tensor_loss(jobs[width], H100, ranks)[1])
                assert abs(share - rule) < 0.05


def test_numbers_by_hand_are_near_those_of_the_rules() -> None:
    said = problem.example()
    sent, narrow = rules.tensor_loss(LARGE, H100, 8)
    assert 0.9 < sent / (7 * 2 / 9 * problem.RATE / H100.nvlink / LARGE.width) < 1
    assert 0.95 < rules.hidden_from(LARGE, H100, 512) / said["hides"] < 1
    assert said["hides"] > 1.9 * problem.EACH
    assert said["hides_many"] > said["hides"]
    assert said["piece_hides"] < LARGE.tokens / 2
    assert narrow == pytest.approx(560 / 16_944 * 3)
    assert PIECE == 1200
    assert round((1 + PIECE / 4096) / (1 + PIECE / 8192) - 1, 2) == 0.13


def test_messages_between_stages_by_hand_take_a_third_of_a_millisecond_each() -> None:
    bytes_ = 2 * LARGE.width * LARGE.tokens / 16
    assert round(bytes_ / 1e6) == 17
    assert message(H100, bytes_) == pytest.approx(1e-3 / 3, rel=0.1)
    waits = 2 * (16 * 8 - 1) * message(H100, bytes_)
    assert waits == pytest.approx(problem.bill(Grid("", 64, 8, 16, 2, interleaved=8)).borders)
