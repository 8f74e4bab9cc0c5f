"""Charts show what was measured, with markers or as steps, and what was predicted, dashed."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from minidist.plots import Curve, curves, memory_curve
from minidist.plots.style import PHASE
from minidist.profiler.spans import Span

SPANS = [
    Span(0, "compute", "forward", 0.001, 0.002),
    Span(0, "compute", "backward", 0.002, 0.004),
    Span(0, "communication", "forward", 0.0, 9.0),
    Span(0, "compute", "nap", 0.0, 9.0),
]
ONE = SimpleNamespace(
    points=[(0.0, 5_000_000), (0.002, 9_000_000), (0.004, 2_000_000)], spans=SPANS
)
OTHER = SimpleNamespace(points=[(0.0, 1_000_000), (0.001, 3_000_000)], spans=[])


@pytest.fixture(autouse=True)
def _closed() -> None:
    plt.close("all")


def test_measured_points_have_markers_and_predictions_dashes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1, True)]
    figure = curves(lines, x_label="bytes", y_label="seconds")
    (axes,) = figure.axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[2.0, 3.0], [4, 5]]
    assert [(line.get_linestyle(), line.get_marker()) for line in axes.lines] == [
        ("-", "o"),
        ("--", "None"),
    ]


def test_a_curve_jumps_where_memory_was_taken_on_one_scale_with_the_others() -> None:
    figure = memory_curve({"one": ONE, "other": OTHER}, {"one": {"state": 4e6}})
    upper, lower = figure.axes
    line, state = upper.lines
    assert list(line.get_xdata()) == [0, 2, 4], "milliseconds"
    assert list(line.get_ydata()) == [5, 9, 2], "MB"
    assert line.get_drawstyle() == "steps-post"
    assert set(state.get_ydata()) == {4}
    assert list(lower.lines[0].get_ydata()) == [1, 3]
    assert (upper.get_xlim(), upper.get_ylim()) == (lower.get_xlim(), lower.get_ylim())
    assert upper.get_ylim()[0] == 0
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "other"]
    assert (lower.get_xlabel(), upper.get_ylabel()) == ("milliseconds", "MB")


def test_phases_of_computing_are_shaded_in_their_colours_and_named_once() -> None:
    inner = Span(0, "compute", "forward", 0.0012, 0.002)  # a wrapper's own mark: not shaded twice
    again = SimpleNamespace(points=ONE.points, spans=[*SPANS, inner])
    figure = memory_curve({"one": again, "again": ONE}, {"one": {"state": 1.0}})
    shaded = [patch for patch in figure.axes[0].patches if patch.get_alpha() == 0.14]
    edges = [(p.get_x(), round(p.get_x() + p.get_width(), 9)) for p in shaded]
    assert edges == [(1, 2), (2, 4)]
    assert [to_hex(p.get_facecolor()).upper() for p in shaded] == [
        PHASE["forward"],
        PHASE["backward"],
    ]
    names = [text.get_text() for text in figure.legends[0].texts]
    assert sorted(names) == ["backward", "forward", "state"]
