"""Grids that others have run, beside their prices: what is fitted, and to what."""

from dataclasses import replace

import pytest

from course.pages import grids
from course.pages.grids import Run, held, in_five, run, runs, software, speeds, summary, turn, unit
from minidist.formulas.grids import search


def test_rows_set_aside_change_no_speed() -> None:
    found = runs()
    changed = [
        replace(each, predicted=9 * each.predicted) if each.row["aside"] else each for each in found
    ]
    assert speeds(changed) == speeds(found)
    doubled = [replace(each, predicted=2 * each.predicted) for each in found]
    assert speeds(doubled) == {
        name: pytest.approx(each / 2) for name, each in speeds(found).items()
    }


def test_a_run_that_is_as_predicted_has_no_error() -> None:
    speed = speeds(runs())
    exact = [
        replace(each, published=each.predicted * speed.get(software(each.row), 1.0))
        for each in runs()[:50]
    ]
    assert held(exact).error == pytest.approx(0)
    assert held(exact).ranks == pytest.approx(1)


def test_a_row_is_priced_in_the_grid_that_it_says() -> None:
    for each in runs():
        row, grid = each.row, each.grid
        for name in grids.DEGREES:
            assert getattr(grid, name) == row[name]
        assert grid.batch == (row["micro_batch"] or grid.batch)
        assert grid.recompute == (row["recompute"] or grid.recompute)
        assert grid.data * grid.tensor * grid.pipeline * grid.context == row["gpus"]


def test_what_a_row_leaves_open_is_as_is_best() -> None:
    row = next(each.row for each in runs() if each.row["micro_batch"] and each.row["pipeline"] > 1)
    told, best = run(row), run(row | {"micro_batch": None})
    assert told
    assert best
    assert best.predicted >= told.predicted or told.peak > told.limit


def test_speed_in_flops_counts_attention_in_full() -> None:
    each: Run = next(each for each in runs() if each.row["source"] == "llm-foundry")
    assert each.published / unit(each) == pytest.approx(each.row["tflops"], rel=0.03)


def test_what_the_page_says_of_them() -> None:
    found = summary()
    assert (found["runs"], found["sources"], found["aside"]) == (735, 32, 243)
    assert found["error"] == pytest.approx(0.110, abs=0.005)
    assert found["dense"] == pytest.approx(0.085, abs=0.005)
    assert found["ranks"] == pytest.approx(0.89, abs=0.01)
    assert found["five"] == pytest.approx(0.57, abs=0.02)
    assert found["error"] < 0.12 < found["mixtures"] < 0.3 < found["worst"]
    assert found["worst_playbook"] > found["worst_of"] / 2
    assert found["worst_playbook_over"] > 0.85
    assert found["worst_playbook_gpus"] == 64
    best = [each for each in runs() if each.row["best"] and each.row["aside"]]
    assert found["five"] == sum(map(in_five, best)) / len(best)


def test_wide_tensor_groups_of_the_playbook_take_as_long_for_twice_the_tokens() -> None:
    """A cost for each layer and micro-batch that no price of bytes and operations has."""
    for tensor, pipeline, one, two in ((8, 4, 1, 2), (16, 2, 2, 4)):
        less, more = (turn(runs(), "Llama-like 80B", 128, tensor, pipeline, b) for b in (one, two))
        assert 0.9 < more / less < 1.1
    assert summary()["turn_one"] == pytest.approx(0.51, abs=0.005)
    assert summary()["turn_two"] == pytest.approx(0.54, abs=0.005)


def test_a_search_splits_nemotron_s_layers_less() -> None:
    told = next(each for each in runs() if each.row["source"] == "nemotron15")
    found = search(grids.question(told.row), 1)["best"][0]
    assert (told.grid.tensor, found["grid"].tensor) == (8, 2)
    assert told.peak < 0.27 * told.limit
    tokens = told.row["batch"] * told.row["sequence"] / told.row["gpus"]
    assert 1.25 < tokens / found["forecast"]["overlapped"] / told.predicted < 1.4
