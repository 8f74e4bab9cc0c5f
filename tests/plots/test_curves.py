"""Line charts: each curve on its axes."""

import matplotlib.pyplot as plt
import numpy as np

from minidist.plots import Curve, curve_panels


def test_panels_show_the_same_curves_over_the_same_axes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1, True)]
    figure = curve_panels({"few": lines, "many": lines[:1]}, x_label="bytes", y_label="seconds")
    few, many = figure.axes
    assert [axes.get_title() for axes in (few, many)] == ["few", "many"]
    assert [np.asarray(line.get_ydata()).tolist() for line in few.lines] == [[2.0, 3.0], [4, 5]]
    assert [line.get_linestyle() for line in few.lines] == ["-", "--"]
    assert len(many.lines) == 1
    assert few.get_ylim() == many.get_ylim()
    plt.close(figure)
