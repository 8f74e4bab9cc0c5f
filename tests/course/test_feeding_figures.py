"""Pictures of the chapter on feeding the ranks: what is drawn is what the data say."""

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course import figures
from course.figures.feeding import descend
from tests.support.figures import texts


def boxes(axes: Axes) -> int:
    return sum(isinstance(patch, Rectangle) for patch in axes.patches)


def test_the_effective_batch_has_a_cell_for_each_sample() -> None:
    (axes,) = figures.global_batch(ranks=4, micro=3, batch=2).axes
    assert boxes(axes) == 4 * 3 * 2 + 1
    assert texts(axes)[:4] == [f"rank {rank}" for rank in range(4)]


def test_a_rank_that_has_ended_is_waited_for_or_sends_zeros() -> None:
    without, joined = figures.uneven([3, 5]).axes
    assert texts(without).count("Σ") == 2 * 3
    assert texts(without).count("4") == 1
    assert texts(without)[-2:] == ["has ended", "waits …"]
    assert texts(joined).count("Σ") == 2 * 5
    assert texts(joined).count("zeros") == 2
    assert "waits …" not in texts(joined)


def test_a_mask_has_a_cell_for_each_unit_that_is_dropped() -> None:
    dropped = torch.tensor([[[True, False], [True, True]], [[False, False], [False, True]]])
    first, second = figures.masks({"title": dropped}).axes
    assert (boxes(first) - 1, boxes(second) - 1) == (3, 1)


def test_spreads_say_the_variance_of_each_rank_and_of_all() -> None:
    (axes,) = figures.spreads(torch.tensor([[-1.0, 1.0], [2.0, 2.0]])).axes
    assert texts(axes)[:3] == ["1.00", "0.00", "1.50"]


def test_small_steps_and_a_large_one_part_as_the_rate_grows() -> None:
    def apart(rate: float) -> float:
        small, large = descend(rate, 6)[-1], descend(6 * rate, 1)[-1]
        return float(((small - large) ** 2).sum() ** 0.5)

    assert 3 * apart(0.02) < apart(0.08)
    assert len(figures.two_paths([0.02, 0.08], 6).axes) == 2
