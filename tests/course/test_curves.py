"""Curves show what was measured with markers and what was predicted dashed, and name their ends."""

from itertools import pairwise

import numpy as np
import pytest

from course.figures import Curve, curves
from minidist.plots.style import COLORS


def test_measured_points_have_markers_and_predictions_dashes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1, True)]
    (axes,) = curves({"seconds": lines}, x_label="bytes").axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[2.0, 3.0], [4, 5]]
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]
    solid, dashed = (line.get_linestyle() for line in axes.lines)
    assert solid == "-" != dashed
    assert (axes.get_title("left"), axes.get_xlabel()) == ("seconds", "bytes")


@pytest.mark.parametrize("y_log", [True, False])
def test_curves_carry_their_names_at_their_ends_and_names_do_not_touch(y_log: bool) -> None:
    ends = {"a": 5.0, "b": 5.01, "of two words, of two": 5.02, "c": 500.0, "": 7.0}
    lines = [Curve(name, [1, 1024], [1.0, y], i, True) for i, (name, y) in enumerate(ends.items())]
    panels, ticks = {"few": lines[:1], "many": lines}, {1.0: "1 B", 1024.0: "1 KiB"}
    figure = curves(panels, x_label="", x_ticks=ticks, marks={"here": 32}, y_log=y_log)
    few, many = figure.axes
    assert few.get_ylim() == many.get_ylim()
    assert [label.get_text() for label in many.get_xticklabels()] == list(ticks.values())
    assert [np.asarray(axes.lines[-1].get_xdata())[0] for axes in (few, many)] == [32, 32]
    figure.draw_without_rendering()
    mark, *names = many.texts
    assert mark.get_text() == "here"
    assert [name.get_text() for name in names] == ["a", "b", "of two words,\nof two", "c"]
    boxes = [name.get_window_extent() for name in names]
    assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))
    assert [name.get_color() for name in names] == list(COLORS[:4])
    assert [line.get_linestyle() for line in many.lines[:3]] == ["--", "-.", ":"]
