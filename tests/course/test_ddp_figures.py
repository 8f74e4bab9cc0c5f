"""Pictures of DDP: buckets that travel, a step of all ranks, curves with their names."""

import pytest

from course import figures

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
    written = [text.get_text() for text in axes.texts]
    assert [written.count(name) for name in ("before", "mean", "after")] == [3, 1, 3]
