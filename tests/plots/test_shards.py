"""The picture of who holds what: what is filled is what was said to be held."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minidist.plots import shards as draw_shards

ALL, OWN = [[True, True], [True, True]], [[True, False], [False, True]]
ROWS = {
    "DDP": {"forward": {"w": ALL, "m": ALL}, "step": {"w": ALL, "m": ALL}},
    "ZeRO": {"forward": {"w": ALL, "m": OWN}, "step": {"w": OWN, "m": OWN}},
}


def held(axes: Axes) -> list[list[bool]]:
    """Of each rank, whether its slices are filled, from left to right."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    ranks = sorted({box.get_y() for box in boxes})
    lines = [sorted((b.get_x(), b.get_fill()) for b in boxes if b.get_y() == r) for r in ranks]
    return [[filled for _, filled in line] for line in lines]


def test_each_panel_fills_what_its_ranks_hold() -> None:
    figure = draw_shards.holdings(ROWS)
    whole, own = [True] * 4, [True, True, True, False]
    assert [held(axes) for axes in figure.axes] == [
        [whole, whole],
        [whole, whole],
        [own, [True, True, False, True]],
        [[True, False, True, False], [False, True, False, True]],
    ]
    plt.close(figure)


def test_a_slice_says_its_number_and_no_two_lie_on_each_other() -> None:
    figure = draw_shards.holdings(ROWS)
    last = figure.axes[-1]
    found = {(round(t.get_position()[1]), t.get_text()) for t in last.texts}
    assert found == {(0, "0"), (1, "1")}
    places = [(patch.get_x(), patch.get_y()) for patch in last.patches]
    assert len(set(places)) == len(places) == 8
    plt.close(figure)


def test_strategies_moments_parts_and_ranks_have_their_names() -> None:
    figure = draw_shards.holdings(ROWS)
    assert [axes.get_ylabel() for axes in figure.axes] == ["DDP", "", "ZeRO", ""]
    assert [axes.get_title() for axes in figure.axes] == ["forward", "step", "", ""]
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_xticklabels()] == ["w", "m"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["0", "1"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({**ROWS, "x": {"forward": ROWS["DDP"]["forward"]}}, "x: moments: expected .* got"),
        ({**ROWS, "x": {"forward": {"w": ALL}, "step": {"w": ALL}}}, "x, forward: parts"),
    ],
)
def test_a_strategy_that_lacks_something_is_refused(rows: object, message: str) -> None:
    before = len(plt.get_fignums())
    with pytest.raises(ValueError, match=message):
        draw_shards.holdings(rows)  # type: ignore[arg-type]
    assert len(plt.get_fignums()) == before
