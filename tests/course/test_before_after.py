"""What is drawn in each cell is what the replay holds there."""

from collections.abc import Sequence

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from course.figures import before_after
from minidist.plots.style import RANK
from minidist.schedule import algorithms
from minidist.schedule.schedule import Schedule
from minidist.schedule.traffic import replay
from tests.support.figures import boxes

ALL = tuple(range(4))


def texts(axes: Axes, columns: int, ranks: int) -> list[list[str]]:
    """What is written in the cells, row by row; "" where nothing is."""
    grid = [[""] * columns for _ in range(ranks)]
    for text in axes.texts:
        x, y = text.get_position()
        grid[int(y)][int(x)] = text.get_text()
    return grid


def stripes(axes: Axes, x: int, rank: int) -> list[str]:
    """The colours of a cell from left to right."""
    filled = [r for r in boxes(axes) if r.get_fill() and r.get_y() == rank]
    inside = sorted(
        (r.get_x(), to_hex(r.get_facecolor())) for r in filled if x <= r.get_x() < x + 1
    )
    return [color.upper() for _, color in inside]


def outlined(axes: Axes) -> list[tuple[float, float]]:
    return [(r.get_x(), r.get_y()) for r in boxes(axes) if r.get_linewidth() == 2]


def diagonal(marks: Sequence[str]) -> list[list[str]]:
    return [[mark if x == y else "" for x in range(4)] for y, mark in enumerate(marks)]


ROWS = [[str(rank)] * 4 for rank in ALL]
COLUMN = [["0", "1", "2", "3"]] * 4
SUMS = [["Σ"] * 4] * 4
EMPTY = [""] * 4
ROOT_ROW = [EMPTY, EMPTY, ["2"] * 4, EMPTY]
GATHERED = [EMPTY, EMPTY, ["0", "1", "2", "3"], EMPTY]
SHIFTED = [["", "", "", "3"], ["0", "", "", ""], ["", "1", "", ""], ["", "", "2", ""]]
BLOCKS = [[f"{src}→{dst}" for dst in ALL] for src in ALL]


@pytest.mark.parametrize(
    ("schedule", "before", "after"),
    [
        (algorithms.ring_all_gather(4), diagonal("0123"), COLUMN),
        (algorithms.ring_reduce_scatter(4), ROWS, diagonal("ΣΣΣΣ")),
        (algorithms.ring_all_reduce(4), ROWS, SUMS),
        (algorithms.direct_scatter(4, root=2), ROOT_ROW, diagonal("2222")),
        (algorithms.direct_gather(4, root=2), diagonal("0123"), GATHERED),
        (algorithms.ring_shift(4), diagonal("0123"), SHIFTED),
        (algorithms.pairwise_all_to_all(4), BLOCKS, list(map(list, zip(*BLOCKS, strict=True)))),
        (algorithms.tree_reduce(4, root=1), [*map(list, "0123")], [[""], ["Σ"], [""], [""]]),
        (algorithms.ring_all_reduce(1), [["0"]], [["0"]]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_before_and_after_are_the_start_and_the_promise(
    schedule: Schedule, before: list[list[str]], after: list[list[str]]
) -> None:
    left, right = before_after({"picture": replay(schedule)}).axes
    assert left.get_title("left") == "picture: before"
    assert texts(left, len(before[0]), len(before)) == before
    assert texts(right, len(before[0]), len(before)) == after
    assert outlined(left) == outlined(right) == []


def test_a_cell_is_striped_in_the_colours_of_its_contributors() -> None:
    left, right = before_after({"": replay(algorithms.ring_reduce_scatter(4))}).axes
    for rank in ALL:
        assert stripes(left, 0, rank) == [RANK[rank]]
        assert stripes(right, rank, rank) == list(RANK[:4])
    assert stripes(right, 1, 0) == []


def test_a_partial_sum_is_outlined_and_spelled_out_and_pictures_keep_one_scale() -> None:
    tree = algorithms.tree_all_reduce(4)
    cut = Schedule("cut", "all_reduce", 4, 1, lambda: list(tree)[:1])
    wide = replay(algorithms.ring_all_reduce(5))
    axes = before_after({"wide": wide, "tall": replay(cut)}).axes
    assert len({each.get_xlim() for each in axes}) == 1
    assert texts(axes[2], 1, 4) == [["0"], ["1"], ["2"], ["3"]]
    assert texts(axes[3], 1, 4) == [["0+1"], ["1"], ["2+3"], ["3"]]
    assert sorted(outlined(axes[3])) == [(0, rank) for rank in ALL]
