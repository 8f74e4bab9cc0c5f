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
