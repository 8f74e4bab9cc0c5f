"""The chart of what is held in the phases of a step, and what was predicted."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from minidist.plots import memory_curve
from minidist.plots.style import ALGORITHM, PART, PHASE, color_of, thinned
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


def test_memory_jumps_at_each_allocation_on_one_scale_of_bytes() -> None:
    figure = memory_curve({"one": ONE, "other": OTHER}, {"one": {"state": 4e6}})
    upper, lower = figure.axes
    line, state = upper.lines
    assert list(line.get_ydata()) == [5, 9, 2], "MB"
    assert line.get_drawstyle() == "steps-post"
    assert set(state.get_ydata()) == {4}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["state"]
    assert [list(lower.lines[0].get_xdata()), list(lower.lines[0].get_ydata())] == [[0, 1], [1, 3]]
    assert upper.get_ylim() == lower.get_ylim()
    assert upper.get_ylim()[0] == 0
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one, MB", "other, MB"]


def test_phases_are_equally_wide_and_what_lies_in_them_is_in_order() -> None:
    inner = Span(0, "compute", "forward", 0.0012, 0.002)  # a wrapper's own mark: not shaded twice
    idle = Span(0, "compute", "optimizer", 0.005, 0.006)  # nothing is allocated in it
    at = (0.0, 0.001, 0.0011, 0.0019, 0.002, 0.0039, 0.007, 0.008)
    points = [(when, 1_000_000 * i) for i, when in enumerate(at)]
    again = SimpleNamespace(points=points, spans=[idle, *SPANS, inner])
    (axes,) = memory_curve({"one": again}).axes
    shaded = [patch for patch in axes.patches if patch.get_alpha() == 0.14]
    assert [round(p.get_width(), 9) for p in shaded] == [1, 1, 1]
    assert [to_hex(p.get_facecolor()).upper() for p in shaded] == [
        PHASE[name] for name in ("forward", "backward", "optimizer")
    ]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["forward", "backward", "optimizer"]
    left = shaded[0].get_x()
    x = list(axes.lines[0].get_xdata())
    assert x[:5] == pytest.approx([0, left, left + 1 / 3, left + 2 / 3, left + 1])
    assert x[5] == pytest.approx(left + 1.5)
    assert x[6] == pytest.approx(left + 3), "when the idle phase is over"
    assert x[7] > x[6]


def test_a_dense_curve_keeps_what_can_be_seen_of_it() -> None:
    x = list(range(50_000))
    y = [float(at % 97 == 0) for at in x]
    y[31_415] = 9.0
    across, up = thinned(x, y, most=100)
    assert len(across) <= 4 * 100
    assert (across[0], across[-1]) == (0, 49_999)
    assert (up.max(), across[up.argmax()], up.min()) == (9.0, 31_415, 0.0)
    assert list(across) == sorted(across)
    assert all(up[across == at] == y[int(at)] for at in across)
    few = thinned([1, 2, 4], [3, 5, 3], most=1)
    assert [list(each) for each in few] == [[1, 2, 4], [3, 5, 3]]


def test_a_name_has_its_color_however_it_is_written() -> None:
    assert color_of("Halving-doubling") == color_of("halving doubling")
    assert color_of("Halving-doubling") == ALGORITHM["halving_doubling"]
    assert color_of("optimizer state") == PART["optimizer state"]
    assert len({*ALGORITHM.values()}) == len(ALGORITHM)
