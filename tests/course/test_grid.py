"""The worked problems of the chapter on grids: what its sentences say of rules and searches."""

from course.chapters.grid import problem
from course.chapters.grid.figures import KINDS, kind, rates_kept
from minidist.formulas import rules
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM
from minidist.planner.search import search


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


def test_the_fastest_grid_is_read_by_the_rules_as_the_page_reads_it() -> None:
    told = search(LARGE, "H100", problem.GPUS, problem.SEQUENCES)
    ways, said = told.best[0].grid, problem.numbers(told)
    degrees = ways.data, ways.context, ways.tensor, ways.pipeline, ways.interleaved
    assert degrees == (64, 2, 8, 16, 8)
    assert 8192 / ways.context == said["least_piece"]
    assert said["narrower"] > 0.9 * H100.memory / 1e9
    assert said["keeps"] < ways.tensor * ways.pipeline
    assert said["bubble_own"] == 2 * said["bubble_best"]
    assert 0.05 < said["gain"] < 0.15


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


def test_the_example_s_round_numbers_are_near_those_of_the_rules() -> None:
    said, (_, hides, *_) = problem.example(), problem.hides_from()[0]
    assert 0.9 < said["example_sent"] / said["example_plain"] < 1
    assert 0.95 < hides / said["example_hides"] < 1
