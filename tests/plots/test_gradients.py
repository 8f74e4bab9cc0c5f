"""The picture of gradients before and after: what is drawn is what was handed in."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from minidist.plots import gradients as draw_gradients

NAMES = ["0.weight", "0.bias", "2.weight"]
OWN = [
    {"0.weight": torch.full((40, 2), 2.0), "0.bias": torch.tensor([1.0]), "2.weight": ones}
    for ones in (torch.ones(3), -torch.ones(3))
]
AVERAGED = [OWN[0] | {"2.weight": torch.zeros(3)}] * 2
BUCKETS = {"naive": [["2.weight"], ["0.bias"], ["0.weight"]], "flat": [NAMES[::-1]]}


def strips(axes: Axes) -> list[list[list[float]]]:
    """Of each rank the rows, from the colours' values."""
    shape = (len(NAMES), draw_gradients.BINS)
    return [np.asarray(mesh.get_array()).reshape(shape).tolist() for mesh in axes.collections]


def test_each_rank_shows_its_own_gradients_before_and_the_average_after() -> None:
    figure = draw_gradients.gradients(OWN, AVERAGED, BUCKETS)
    before, after, _ = figure.axes
    bins = draw_gradients.BINS
    assert strips(before) == [[[1.0] * bins] * 3, [[-1.0] * bins, [1.0] * bins, [1.0] * bins]]
    assert strips(after) == [[[0.0] * bins, [1.0] * bins, [1.0] * bins]] * 2
    assert [label.get_text() for label in before.get_yticklabels()] == NAMES[::-1]
    assert [label.get_text() for label in after.get_xticklabels()] == ["rank 0", "rank 1"]
    plt.close(figure)


def test_the_bucket_of_every_parameter_stands_beside_it() -> None:
    figure = draw_gradients.gradients(OWN, AVERAGED, BUCKETS)
    places = figure.axes[2]
    numbers = {
        (int(text.get_position()[1]), int(text.get_position()[0])): text.get_text()
        for text in places.texts
    }
    assert numbers == {
        (0, 0): "0", (1, 0): "1", (2, 0): "2",
        (0, 1): "0", (1, 1): "0", (2, 1): "0",
    }  # fmt: skip
    assert [label.get_text() for label in places.get_xticklabels()] == ["naive", "flat"]
    plt.close(figure)


def test_a_long_gradient_is_shown_by_the_means_of_its_pieces() -> None:
    bins = draw_gradients.BINS
    halves = torch.cat([torch.full((5 * bins,), 3.0), torch.full((5 * bins,), -1.0)])
    own = [{"w": halves.view(10, bins)}]
    figure = draw_gradients.gradients(own, own, {"flat": [["w"]]})
    (row,) = np.asarray(figure.axes[0].collections[0].get_array()).reshape(1, bins)
    assert row.tolist() == pytest.approx([1.0] * (bins // 2) + [-1 / 3] * (bins // 2))
    plt.close(figure)


def test_a_gradient_of_zeros_and_one_without_elements_can_be_drawn() -> None:
    own = [{"zeros": torch.zeros(4), "none": torch.zeros(0)}]
    figure = draw_gradients.gradients(own, own, {"flat": [["zeros", "none"]]})
    assert np.asarray(figure.axes[0].collections[0].get_array()).tolist() == [[0.0] * 16] * 2
    plt.close(figure)


@pytest.mark.parametrize("buckets", [[["0.bias"]], [NAMES, ["0.bias"]]])
def test_buckets_that_do_not_hold_each_parameter_once_are_refused(buckets: list[list[str]]) -> None:
    before = len(plt.get_fignums())
    with pytest.raises(ValueError, match=r"buckets: mine: expected each of .* once, got"):
        draw_gradients.gradients(OWN, AVERAGED, {"mine": buckets})
    assert len(plt.get_fignums()) == before
