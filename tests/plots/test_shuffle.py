"""Pictures of a shuffle show what they are given."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest

from minidist.plots import shuffle as draw_shuffle


@pytest.fixture(autouse=True)
def closed() -> None:
    plt.close("all")


def test_every_box_and_result_is_written_where_it_belongs() -> None:
    mapped = [[[("a", 1), ("b", 1)], []], [[], [("c", 2)]], [[("a", 3)], [("c", 4)]]]
    figure = draw_shuffle.boxes(mapped, [{"a": 4, "b": 1}, {"c": 6}])
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


def test_many_pairs_take_two_lines() -> None:
    figure = draw_shuffle.boxes([[[(letter, 1) for letter in "abcde"]]], [{}])
    assert "a 1,  b 1,  c 1\nd 1,  e 1" in [text.get_text() for text in figure.axes[0].texts]


def test_bars_have_their_heights_and_do_not_overlap() -> None:
    groups = {"one": [1.0, 2.0], "two": [3.0, 0.5], "three": [2.0, 2.0]}
    figure = draw_shuffle.bars(groups, ["x", "y"], y_label="bytes")
    (axes,) = figure.axes
    found = sorted((bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches)
    assert [height for *_, height in found] == [1.0, 3.0, 2.0, 2.0, 0.5, 2.0]
    for (x, width, _), (after, *_) in pairwise(found):
        assert x + width < after
    assert axes.get_ylabel() == "bytes"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(groups)
