"""Pictures of algorithms: what is drawn is what their schedules say."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from course import figures
from course.figures.algorithms import edges, ink, level
from minidist.plots.style import RANK
from minidist.schedule import algorithms
from tests.support.figures import texts


def test_rounds_have_an_arrow_for_each_message_in_its_senders_colour() -> None:
    schedule = algorithms.hierarchical_all_reduce(8, local=4)
    (axes,) = figures.rounds(schedule, local=4).axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == sum(len(step) for step, _ in schedule.outline())
    assert {to_rgb(each.get_edgecolor()[:3]) for each in arrows} == set(map(to_rgb, RANK))
    said = texts(axes)
    assert said[:2] == ["node 0", "node 1"]
    assert said[2:6] == [
        "3 × 1/4 of the\ntensor",
        "1/8 of the\ntensor",
        "1/8 of the\ntensor",
        "3 × 1/4 of the\ntensor",
    ]
    assert said[6:] == list("01234567") * 5


def test_a_number_on_a_rank_is_black_on_light_colours_and_white_on_dark_ones() -> None:
    assert (ink("#E5D600"), ink("#444B54")) == ("black", "white")


def test_a_pipeline_says_which_segment_is_on_which_link_in_which_step() -> None:
    (axes,) = figures.pipeline(algorithms.chain_all_reduce(3, segments=2)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 2 → 1", "rank 1 → 0", "rank 0 → 1", "rank 1 → 2",
    ]  # fmt: skip
    cells = {(t.get_position()[1], t.get_position()[0]): t.get_text() for t in axes.texts}
    rows = [[cells.get((row + 0.5, step + 0.5), "") for step in range(5)] for row in range(4)]
    assert rows == [
        ["0", "1", "", "", ""],
        ["", "0", "1", "", ""],
        ["", "", "0", "1", ""],
        ["", "", "", "0", "1"],
    ]
    hatched = [patch.get_hatch() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sorted(map(bool, hatched)) == [False] * 4 + [True] * 4


def test_both_trees_have_all_ranks_and_children_are_below_their_parents() -> None:
    schedule = algorithms.double_tree_all_reduce(8, segments=2)
    for parents in edges(schedule):
        assert len(parents) == 7
        assert all(level(parents, up) > level(parents, child) for child, up in parents.items())
    (axes,) = figures.double_tree(schedule).axes
    assert sorted(text for text in texts(axes) if text.isdigit()) == sorted("01234567" * 2)
    assert {"tree 1: first half", "tree 2: second half"} <= set(texts(axes))


def test_the_floors_are_those_of_the_number_of_ranks() -> None:
    counted = {"ring": (14.0, 1.75), "tree": (6.0, 3.0)}
    (axes,) = figures.floors(counted, 8, {"tree": (-8, 3)}).axes
    steps, sent, *points = axes.lines
    assert np.asarray(steps.get_xdata())[0] == 3
    assert np.asarray(sent.get_ydata())[0] == 1.75
    drawn = [(np.asarray(p.get_xdata())[0], np.asarray(p.get_ydata())[0]) for p in points]
    assert drawn == list(counted.values())
    assert {"ring", "tree"} <= set(texts(axes))


def test_the_hops_of_a_ring_that_leave_a_node_are_thick_and_priced() -> None:
    (axes,) = figures.ring_path(3, 2, "1 µs", "9 µs").axes
    hops = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert [hop.get_linewidth() > 2 for hop in hops] == [False, True] * 3
    assert texts(axes).count("9 µs") == 3
    assert "once round:\n3 × 1 µs\n+ 3 × 9 µs" in texts(axes)


def test_in_one_memory_ranks_write_rows_read_columns_and_leave_sums_on_the_diagonal() -> None:
    panels = figures.one_memory(3).axes
    assert [len(texts(axes)) for axes in panels] == [0, 3, 3]
    filled = [
        [to_rgb(p.get_facecolor()[:3]) for p in axes.patches if p.get_alpha() == 0.55]
        for axes in panels
    ]
    a, b, c = map(to_rgb, RANK[:3])
    assert filled == [[a, a, a, b, b, b, c, c, c], [a, b, c] * 3, [a, b, c]]
