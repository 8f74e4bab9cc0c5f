"""Pictures of amounts show the amounts that they were given."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import Rectangle

from minidist.plots import bars


@pytest.fixture(autouse=True)
def _closed() -> None:
    plt.close("all")


def test_bars_stand_on_each_other_and_lack_what_they_lack() -> None:
    small = {"a": {"w": 1.0, "g": 2.0}, "b": {"g": 5.0}}
    figure = bars.stacked([small, {"c": {"w": 100.0}}], y_label="GB", limit=("one GPU", 4.0))
    left, right = figure.axes
    drawn = [(p.get_x() > 0.5, p.get_y(), p.get_height()) for p in left.patches]
    assert drawn == [(False, 0, 1), (True, 0, 0), (False, 1, 2), (True, 0, 5)]
    assert [(p.get_y(), p.get_height()) for p in right.patches] == [(0, 100), (100, 0)]
    assert [axes.lines[0].get_ydata()[0] for axes in figure.axes] == [4, 4]
    assert {text.get_text() for text in figure.legends[0].texts} == {"w", "g", "one GPU"}
    assert left.get_ylabel() == "GB"


def test_without_a_limit_there_is_no_line() -> None:
    figure = bars.stacked([{"a": {"w": 1.0}}], y_label="GB")
    assert not figure.axes[0].lines


def test_a_level_jumps_where_it_was_told_to() -> None:
    figure = bars.level([(0, 3), (1, 8), (2, 2)], {"floor": 2}, x_label="s", y_label="MB")
    (axes,) = figure.axes
    curve, floor = axes.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 1, 2], [3, 8, 2])
    assert curve.get_drawstyle() == "steps-post"
    assert set(floor.get_ydata()) == {2}
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize(
    ("parts", "local"),
    [([[0, 1], [2, 3], [4, 5], [6, 7]], 2), ([[0, 1], [2], []], 2), ([["x"]], 1)],
)
def test_every_sample_is_in_one_box_of_its_rank(parts: list[list[object]], local: int) -> None:
    (axes,) = bars.shares(parts, local).axes
    boxes = [p.get_x() for p in axes.patches if isinstance(p, Rectangle)]
    texts = [text.get_text() for text in axes.texts]
    assert len(boxes) == sum(map(len, parts))
    assert all(right - left >= 1 for left, right in pairwise(boxes)), "no box lies on another"
    for rank, part in enumerate(parts):
        assert f"rank {rank}\nlocal {rank % local}" in texts
        assert all(str(sample) in texts for sample in part)
    nodes = [text for text in texts if text.startswith("node")]
    assert nodes == [f"node {node}" for node in range(-(-len(parts) // local))]
