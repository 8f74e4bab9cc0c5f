"""The picture of strategies beside a budget."""

import numpy as np
from matplotlib.patches import Rectangle

from course.figures import budget


def test_forecasts_and_measurements_are_in_place_and_the_box_is_the_budget() -> None:
    forecast = {"ddp": (7.0, 15.0), "hsdp": (6.5, 9.8)}
    figure = budget((8.0, 11.0), forecast, [(6.4, 9.2)])
    (axes,) = figure.axes
    rings, marks = axes.lines
    assert np.asarray(rings.get_xydata()).tolist() == [[7.0, 15.0], [6.5, 9.8]]
    assert np.asarray(marks.get_xydata()).tolist() == [[6.4, 9.2]]
    (box,) = axes.patches
    assert isinstance(box, Rectangle)
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 0), 8, 11)
    assert [text.get_text() for text in axes.texts] == ["the budget", *forecast]
    assert axes.get_xlim()[1] > 8
    assert axes.get_ylim()[1] > 15
