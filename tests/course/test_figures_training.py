"""Pictures of training under DDP and FSDP: what is drawn is what was handed in."""

from fractions import Fraction

import pytest
import torch

from course import figures
from course.chapters.feeding.figures import descend
from minidist.diagnose.records import Rank, RecordedCall
from minidist.parallel.sharding.layouts import Flat, RowLayout
from tests.support.figures import boxes, lines, texts

TRAVELS = {
    "late": [figures.Travel(4, 8, 11), figures.Travel(8, 11, 15)],
    "early": [figures.Travel(4, 4, 7), figures.Travel(8, 8, 12)],
}


def test_a_bucket_is_on_the_link_while_it_travels_and_a_line_begins_where_it_was_full() -> None:
    figure = figures.bucket_timeline([("2", 4), ("1", 8)], TRAVELS)
    for axes, travels in zip(figure.axes, TRAVELS.values(), strict=True):
        bars = [(p.get_x(), p.get_x() + p.get_width(), p.get_y()) for p in axes.patches]
        layers, buckets = bars[:2], bars[2:]
        assert [bar[:2] for bar in layers] == [pytest.approx(e, abs=0.1) for e in [(0, 4), (4, 8)]]
        times = [(travel.start, travel.end) for travel in travels]
        assert [bar[:2] for bar in buckets] == [pytest.approx(each, abs=0.1) for each in times]
        assert {bar[2] for bar in layers}.isdisjoint({bar[2] for bar in buckets})
        *dotted, done = [list(line.get_xdata()) for line in axes.lines]
        assert dotted == [[travel.full, travel.start] for travel in travels]
        assert done == [travels[-1].end] * 2
        assert f"{travels[-1].end} ms" in " ".join(text.get_text() for text in axes.texts)


def test_a_step_of_ddp_has_a_column_for_each_rank_and_one_box_for_all() -> None:
    figure = figures.ddp_step(["a", "b", "c"], ["g0", "g1", "g2"], "mean", "before", "after")
    (axes,) = figure.axes
    places = {text.get_text(): text.get_position()[0] for text in axes.texts if text.get_text()}
    assert [places[name] for name in ("a", "g0", "b", "g1", "c", "g2")] == [0.5] * 2 + [1.5] * 2 + [
        2.5
    ] * 2
    assert places["mean"] == 1.5
    written = texts(axes)
    assert [written.count(name) for name in ("before", "mean", "after")] == [3, 1, 3]


def test_a_units_life_counts_what_a_rank_holds() -> None:
    held = [("forward", "gather", "whole", ""), ("backward", "a", "whole", "whole")]
    (axes,) = figures.unit_life([*held, ("backward", "b", "shard", "shard")], ranks=4).axes
    said = texts(axes)
    assert [text for text in said if text.isdigit()] == ["5", "9", "2"], "with the shard beside"
    assert [f"rank {rank}" in said for rank in range(5)] == [True] * 4 + [False]
    cells = [box for box in boxes(axes) if box.get_width() == 0.2]
    assert sum(box.get_fill() for box in cells) == 4 * (4 + 8 + 2)


def test_each_element_is_kept_once_and_padding_has_no_name() -> None:
    shapes = {"a": torch.Size([3, 2]), "b": torch.Size([5])}
    kept = figures.elements_kept(shapes, {"flat": Flat, "rows": RowLayout}, ranks=4)
    assert kept["flat"] == [["a0", "a1", "a2"], ["a3", "a4", "a5"], ["b0", "b1", "b2"],
                            ["b3", "b4", ""]]  # fmt: skip
    assert kept["rows"][2:] == [["a4", "a5", "b4", ""], [""] * 4]
    for axes in figures.cuts(shapes, kept).axes:
        named = texts(axes)
        assert all(named.count(f"b{index}") == 2 for index in range(5)), "in place, and on a rank"


def test_a_mesh_has_a_box_for_each_rank_with_one_shard_filled() -> None:
    (axes,) = figures.mesh(2, 4).axes
    strips = [box for box in boxes(axes) if box.get_width() < 0.5]
    assert sum(box.get_fill() for box in strips) == 8
    assert len(strips) == 8 * 4


def test_a_mean_of_means_has_a_cell_for_each_token_with_its_weight_and_they_add_up() -> None:
    (axes,) = figures.token_weights([[6, 2], [1, 3]]).axes
    assert len(boxes(axes)) == 6 + 2 + 1 + 3 + 1
    weights = [Fraction(text) for text in texts(axes) if "/" in text]
    assert sum(weights) == 1
    assert max(weights) / min(weights) == 6
    assert [label.get_text() for label in axes.get_xticklabels()] == ["rank 0", "rank 1"]


def test_small_steps_and_a_large_one_part_as_the_rate_grows() -> None:
    def apart(rate: float) -> float:
        small, large = descend(rate, 6)[-1], descend(6 * rate, 1)[-1]
        return float(((small - large) ** 2).sum() ** 0.5)

    assert 3 * apart(0.02) < apart(0.08)
    assert len(figures.two_paths([0.02, 0.08], 6).axes) == 2


def test_the_three_kinds_end_in_an_error_in_a_wait_or_not_at_all() -> None:
    loud, silent, drift = figures.disagreements().axes
    assert texts(loud).count("error") == 2
    assert "✕ dies" in texts(loud)
    assert texts(silent).count("Σ waits …") == 2
    assert [each for each in texts(drift) if "'" in each] == ["3'", "4'", "5'"]
    assert texts(drift).count("5") == 2


def rank(number: int, *calls: tuple[str, str]) -> Rank:
    made = [
        RecordedCall(state, n + 1, name, "float32 (4,)", "0", n + 1, float(n), [0, 1])
        for n, (name, state) in enumerate(calls)
    ]
    return Rank(number, 1, "running", "", 0.0, made, [])


def test_the_first_row_in_which_ranks_differ_has_a_frame() -> None:
    done = ("all_reduce", "left")
    ranks = [rank(0, done, done, ("barrier", "entered")), rank(1, done, done)]
    (axes,) = figures.last_calls(ranks, rows=2).axes
    assert lines(axes) == ["all_reduce", "(4,) done"] * 2 + ["barrier", "(4,) waits"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["#2", "#3"]
    frames = [patch for patch in axes.patches if patch.get_linewidth() > 2]
    assert [frame.get_y() for frame in frames] == [1]  # type: ignore[attr-defined]
    (axes,) = figures.last_calls([rank(0, done), rank(1, done)]).axes
    assert [patch for patch in axes.patches if patch.get_linewidth() > 2] == []
