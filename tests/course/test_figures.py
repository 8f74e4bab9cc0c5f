"""Pictures that only the book's pages use: what is drawn is what was handed in."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from course import figures
from course.figures.shards import BINS
from minidist.plots import COLORS, Curve


@pytest.fixture(autouse=True)
def _closed() -> None:
    plt.close("all")


def test_panels_show_curves_over_the_same_axes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1)]
    panels = {"few": lines, "many": lines[:1]}
    few, many = figures.curve_panels(panels, x_label="bytes", y_label="seconds").axes
    assert [axes.get_title() for axes in (few, many)] == ["few", "many"]
    assert [np.asarray(line.get_ydata()).tolist() for line in few.lines] == [[2.0, 3.0], [4, 5]]
    assert len(many.lines) == 1
    assert few.get_ylim() == many.get_ylim()


def test_what_was_measured_has_markers_and_its_prediction_is_dashed() -> None:
    pairs = {"2 ranks": ([2.0, 4.0], [1.0, 3.0]), "4 ranks": ([5.0, 6.0], [7.0, 8.0])}
    figure = figures.measured_and_predicted([4, 8], pairs, x_label="bytes", y_label="seconds")
    (axes,) = figure.axes
    drawn = {str(line.get_label()): line for line in axes.lines}
    assert list(drawn["4 ranks, predicted"].get_ydata()) == [7, 8]
    assert [line.get_linestyle() for line in drawn.values()] == ["-", "--"] * 2
    assert [line.get_marker() == "None" for line in drawn.values()] == [False, True] * 2
    assert len({line.get_color() for line in drawn.values()}) == 2


def test_bars_stand_on_each_other_and_lack_what_they_lack() -> None:
    small = {"a": {"w": 1.0, "g": 2.0, "o": 4.0}, "b": {"g": 5.0}}
    other, marks = {"c": {"w": 100.0}}, ("measured", {"a": 6.5, "b": 3.0})
    figure = figures.stacked_bars([small, other], y_label="GB", limit=("one GPU", 4.0), marks=marks)
    left, right = figure.axes
    drawn = [(p.get_x() > 0.5, p.get_y(), p.get_height()) for p in left.patches]
    assert drawn[::2] == [(False, 0, 1), (False, 1, 2), (False, 3, 4)]
    assert drawn[1::2] == [(True, 0, 0), (True, 0, 5), (True, 5, 0)]
    assert [(p.get_y(), p.get_height()) for p in right.patches] == [(0, 100), (100, 0), (100, 0)]
    assert [axes.lines[0].get_ydata()[0] for axes in figure.axes] == [4, 4]
    assert list(left.lines[1].get_ydata()) == [6.5, 3]
    names = sorted(text.get_text() for text in figure.legends[0].texts)
    assert names == ["g", "measured", "o", "one GPU", "w"]
    assert left.get_ylabel() == "GB"


@pytest.mark.parametrize(("parts", "local"), [([[0, 1], [2], []], 2), ([["x"]], 1)])
def test_every_sample_is_in_one_box_of_its_rank(parts: list[list[object]], local: int) -> None:
    (axes,) = figures.batch_shares(parts, local).axes
    boxes = [p.get_x() for p in axes.patches if isinstance(p, Rectangle)]
    texts = [text.get_text() for text in axes.texts]
    assert len(boxes) == sum(map(len, parts))
    assert all(right - left >= 1 for left, right in pairwise(boxes)), "no box lies on another"
    for rank, part in enumerate(parts):
        assert f"rank {rank}\nlocal {rank % local}" in texts
        assert all(str(sample) in texts for sample in part)
    nodes = [text for text in texts if text.startswith("node")]
    assert nodes == [f"node {node}" for node in range(-(-len(parts) // local))]


# What each of four ranks draws of ten samples, in order.
DRAWN = [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_the_picture_of_an_epoch_crosses_out_what_is_repeated() -> None:
    figure = figures.epoch(DRAWN, batch=2)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == list("012345678901")
    assert len(axes.lines) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert len(set(colors)) == 2
    assert colors.count(colors[0]) == 8, "two samples of each of four ranks"


def test_every_box_and_result_is_written_where_it_belongs() -> None:
    mapped = [[[("a", 1), ("b", 1)], []], [[], [("c", 2)]], [[("a", 3)], [("c", 4)]]]
    figure = figures.shuffle(mapped, [{"a": 4, "b": 1}, {"c": 6}])
    (axes,) = figure.axes
    texts = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    places = {(int(x), int(y)): text for (x, y), text in texts.items()}
    assert places == {
        (0, 0): "a 1,  b 1",
        (1, 1): "c 2",
        (0, 2): "a 3",
        (1, 2): "c 4",
        (0, 3): "a 4,  b 1",
        (1, 3): "c 6",
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["reducer 0", "reducer 1"]
    rows = [tick.get_text() for tick in axes.get_yticklabels()]
    assert rows == ["map task 0", "map task 1", "map task 2", "result"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "map task 0 is on top"


def test_the_map_shows_each_winner_in_its_own_colour_and_names_it() -> None:
    best = {"a": {8: ["x", "x", "x", "z"], 16: ["x", "z", "z", "z"]}, "b": {8: ["x"] * 4}}
    figure = figures.winners(best, [2.0, 4.0, 8.0, 16.0], ["x", "y", "z"])
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["x", "z"]
    assert [text.get_text() for text in right.texts] == ["x"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["8", "16"]
    colors = mesh_colors(left)
    x, z = to_rgb(COLORS[0]), to_rgb(COLORS[2])
    assert colors == [[x, x, x, z], [x, z, z, z]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "z"]


def mesh_colors(axes: Axes) -> list[list[tuple[float, ...]]]:
    (mesh,) = axes.collections
    mesh.update_scalarmappable()
    rgb = mesh.get_facecolor().reshape(2, 4, 4)  # type: ignore[union-attr]
    return [[tuple(cell[:3]) for cell in row] for row in rgb.tolist()]


# ---- gradients ----


NAMES = ["0.weight", "0.bias", "2.weight"]
OWN = [
    {"0.weight": torch.full((40, 2), 2.0), "0.bias": torch.tensor([1.0]), "2.weight": ones}
    for ones in (torch.ones(3), -torch.ones(3))
]
AVERAGED = [OWN[0] | {"2.weight": torch.zeros(3)}] * 2
BUCKETS = {"naive": [["2.weight"], ["0.bias"], ["0.weight"]], "flat": [NAMES[::-1]]}


def strips(axes: Axes) -> list[list[list[float]]]:
    """Of each rank the rows, from the colours' values."""
    shape = (len(NAMES), BINS)
    return [np.asarray(mesh.get_array()).reshape(shape).tolist() for mesh in axes.collections]


def test_gradients_before_and_after_they_are_averaged_and_their_buckets() -> None:
    figure = figures.gradients(OWN, AVERAGED, BUCKETS)
    before, after, places = figure.axes
    assert strips(before) == [[[1.0] * BINS] * 3, [[-1.0] * BINS, [1.0] * BINS, [1.0] * BINS]]
    assert strips(after) == [[[0.0] * BINS, [1.0] * BINS, [1.0] * BINS]] * 2
    assert [label.get_text() for label in before.get_yticklabels()] == NAMES[::-1]
    assert [label.get_text() for label in after.get_xticklabels()] == ["rank 0", "rank 1"]
    numbers = {
        (int(text.get_position()[1]), int(text.get_position()[0])): text.get_text()
        for text in places.texts
    }
    assert numbers == {
        (0, 0): "0", (1, 0): "1", (2, 0): "2",
        (0, 1): "0", (1, 1): "0", (2, 1): "0",
    }  # fmt: skip
    assert [label.get_text() for label in places.get_xticklabels()] == ["naive", "flat"]


# ---- shards ----


ALL, ITS_OWN = [[True, True], [True, True]], [[True, False], [False, True]]
ROWS = {
    "DDP": {"forward": {"w": ALL, "m": ALL}, "step": {"w": ALL, "m": ALL}},
    "ZeRO": {"forward": {"w": ALL, "m": ITS_OWN}, "step": {"w": ITS_OWN, "m": ITS_OWN}},
}


def held(axes: Axes) -> list[list[bool]]:
    """Of each rank, whether its shards are filled, from left to right."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    ranks = sorted({box.get_y() for box in boxes})
    lines = [sorted((b.get_x(), b.get_fill()) for b in boxes if b.get_y() == r) for r in ranks]
    return [[filled for _, filled in line] for line in lines]


def test_each_panel_fills_and_numbers_what_its_ranks_hold() -> None:
    figure = figures.holdings(ROWS)
    whole, own = [True] * 4, [True, True, True, False]
    assert [held(axes) for axes in figure.axes] == [
        [whole, whole],
        [whole, whole],
        [own, [True, True, False, True]],
        [[True, False, True, False], [False, True, False, True]],
    ]
    last = figure.axes[-1]
    found = {(round(t.get_position()[1]), t.get_text()) for t in last.texts}
    assert found == {(0, "0"), (1, "1")}
    places = [(patch.get_x(), patch.get_y()) for patch in last.patches]
    assert len(set(places)) == len(places) == 8


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


def test_a_curve_carries_its_name_and_a_mark_stands_where_it_says() -> None:
    lines = [
        figures.Labelled("one", [1, 4, 16], [1.0, 2.0, 3.0], 4),
        figures.Labelled("two", [1, 4, 16], [4.0, 6.0, 9.0], 4, "below", 1),
    ]
    ticks = {1: "1 KiB", 16: "16 KiB"}
    figure = figures.labelled_curves(
        lines, x_label="cap", y_label="ms", x_ticks=ticks, marks={8: "default"}
    )
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[1, 2, 3], [4, 6, 9]]
    assert len({line.get_linestyle() for line in axes.lines[:2]}) == 2
    assert list(axes.lines[2].get_xdata()) == [8, 8]
    assert [text.get_text() for text in axes.texts] == ["one", "two", "default"]
    assert [text.xy for text in axes.texts[:2]] == [(4, 2), (4, 6)]  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(ticks.values())
