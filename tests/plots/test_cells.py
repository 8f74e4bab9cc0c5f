"""Rows of cells: where each begins, how far it reaches, and what is written beside it."""

import numpy as np
import pytest

from minidist.plots import style
from minidist.plots.cells import Cell, cells, ending, lanes, of_ranks, summed
from tests.support.figures import boxes, texts


def test_a_cell_begins_where_the_one_before_ends_or_where_it_is_told() -> None:
    _, axes = style.single(size=(3, 2))
    rows = {"a": [Cell("x", wide=2), Cell(), Cell(at=5)], "b": [Cell(high=2), ending("last")]}
    assert cells(axes, rows, tall=0.5) == 6
    places = [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in boxes(axes)]
    assert places == [
        (0, 0.25, 2, 0.5), (2, 0.25, 1, 0.5), (5, 0.25, 1, 0.5), (0, 1.25, 1, 2),
    ]  # fmt: skip
    assert texts(axes) == ["x", "last"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_yticks().tolist() == [0.5, 1.5]


def test_a_sum_names_its_ranks_and_has_a_stripe_of_each() -> None:
    assert [summed(who, 3).text for who in ((), (1,), (0, 2), (0, 1, 2))] == ["", "1", "0+2", "Σ"]
    _, axes = style.single(size=(3, 2))
    cells(axes, [[summed((0, 2), 3, wide=4.0)]])
    stripes = [(p.get_x(), p.get_width()) for p in boxes(axes) if p.get_fill()]
    assert stripes == [(0, 2), (2, 2)]


@pytest.mark.parametrize("numbers", [False, True])
def test_lanes_share_one_axis_and_only_the_last_panel_names_it(numbers: bool) -> None:
    panels = {"one": of_ranks([[Cell(wide=3)], [Cell(wide=7)]]), "two": of_ranks([[Cell()]])}
    figure = lanes(panels, (3, 3), x_label="ms", numbers=numbers)
    one, two = figure.axes
    assert one.get_xlim() == two.get_xlim() == pytest.approx((0, 7.14))
    assert (one.get_xlabel(), two.get_xlabel()) == ("", "ms")
    figure.draw_without_rendering()
    shown = [
        bool(axes.get_xticks().size and axes.spines["bottom"].get_visible()) for axes in (one, two)
    ]
    assert shown == [numbers] * 2
    assert np.diff(two.get_ylim()) < 0, "the first lane is on top"
