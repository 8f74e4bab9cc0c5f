"""The picture of a recording: a bar for each span, and its name where there is room."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from matplotlib.colors import to_hex

from minidist.plots import COLORS, gantt
from minidist.plots.style import PHASE
from minidist.profiler.spans import Span
from tests.profiler.test_timeline import SHIFTED, STEP
from tests.support.figures import boxes


def test_a_bar_for_each_span_where_and_as_long_as_it_was() -> None:
    (axes,) = gantt([*STEP, *SHIFTED]).axes
    drawn = {
        (bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in boxes(axes)
    }
    kinds = ("forward", "backward", "bucket", "optimizer")
    forward, backward, bucket, optimizer = (PHASE[kind] for kind in kinds)
    one = [(0, 1, forward), (1, 3, backward), (2, 1, bucket), (3, 2, bucket), (5, 1, optimizer)]
    wanted = {((x + late) * 1e3, width * 1e3, c) for x, width, c in one for late in (0, 0.5)}
    assert drawn == wanted
    lanes = ["compute", "communication"] * 2
    assert [tick.get_text() for tick in axes.get_yticklabels()] == lanes
    ranks = axes.get_yticklabels(minor=True)
    assert [tick.get_text() for tick in ranks] == ["rank 0", "rank 1"]
    assert len({bar.get_y() for bar in boxes(axes)}) == 4
    legend = [text.get_text() for text in axes.figure.legends[0].texts]
    assert legend == ["forward", "backward", "bucket", "optimizer"]
    low, high = axes.get_ylim()
    assert low > high, "rank 0 is on top"
    (axes,) = gantt([STEP[4], Span(0, "communication", "sum", 16.0, 17.0)]).axes
    same = [to_hex(bar.get_facecolor()).upper() for bar in boxes(axes)]
    assert same == [PHASE["optimizer"], COLORS[3]], "a kind has its colour in every picture"


def many(ranks: int, steps: int) -> list[Span]:
    spans = []
    for rank in range(ranks):
        for step in range(steps):
            t = 20 * step + 0.3 * rank
            spans.append(Span(rank, "compute", "forward", t, t + 4))
            spans.append(Span(rank, "compute", "backward", t + 4, t + 13))
            spans.append(Span(rank, "compute", "optimizer", t + 16, t + 18))
            edges = [t + 6 + at for at in (0, 0.1, 3, 4, 4, 7, 10)]
            for number, (start, end) in enumerate(pairwise(edges)):
                spans.append(Span(rank, "communication", f"bucket {number}", start, end))
            spans.append(Span(rank, "communication", "buffers of the model", t, t + 12))
    return spans


def growing() -> list[Span]:
    """Bars of every length, round that of their names; the name of the lane is long."""
    edges = [1.05**i for i in range(40)]
    return [
        Span(0, "reading the next batch from a disk", f"part {i}", *at)
        for i, at in enumerate(pairwise(edges))
    ]


def test_no_label_leaves_its_bar_and_no_bar_lies_on_another() -> None:
    for spans in (many(2, 3), many(4, 2), many(1, 20), growing()):
        figure = gantt(spans)
        (axes,) = figure.axes
        figure.draw_without_rendering()
        bars = boxes(axes)
        places = [bar.get_window_extent() for bar in bars]
        for text in axes.texts:
            at = text.get_window_extent()
            y = (at.y0 + at.y1) / 2
            homes = [box for box in places if box.x0 <= at.x0 < at.x1 <= box.x1]
            assert any(box.y0 < y < box.y1 for box in homes), text
            assert text.get_fontsize() >= 8
        edges = sorted((bar.get_y(), bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars)
        for (row, _, end), (next_row, start, _) in pairwise(edges):
            assert row != next_row or end <= start + 1e-9
        ticks = axes.get_yticklabels(which="both")
        labels = sorted((t.get_window_extent() for t in ticks), key=lambda box: -box.y0)
        assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(labels))
        low, high = axes.get_xlim()
        assert low == 0
        assert high >= max(end for _, _, end in edges)


def test_names_are_whole_where_they_fit_and_else_their_last_word() -> None:
    def written(spans: Sequence[Span]) -> set[str]:
        return {text.get_text() for text in gantt(spans).axes[0].texts}

    assert written(STEP) >= {"backward", "bucket 1", "0"}
    short = written(many(1, 1))
    assert short >= {"forward", "backward", "1", "buffers of the model"}
    assert short.isdisjoint({"bucket 1", "0", "3"}), "too long, too short a bar, no bar at all"
    assert written(many(1, 60)) == set(), "no room at all"
    with pytest.raises(ValueError, match="at least one span"):
        gantt([])
