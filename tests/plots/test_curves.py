"""Line charts: what is measured has markers, what is predicted a dashed line."""

import matplotlib.pyplot as plt
import numpy as np

from minidist.plots import Curve, curves


def test_measured_points_have_markers_and_predictions_dashes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1, True)]
    figure = curves(lines, x_label="bytes", y_label="seconds")
    (axes,) = figure.axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[2.0, 3.0], [4, 5]]
    assert [(line.get_linestyle(), line.get_marker()) for line in axes.lines] == [
        ("-", "o"),
        ("--", "None"),
    ]
    plt.close(figure)
