"""Pictures of messages: each arrow, label and bar is one that a schedule has."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle

from course import figures
from course.chapters.algorithms.figures import edges, level
from course.chapters.ring.figures import lanes, place
from course.drawing.sketches import ink, shares
from minidist.plots.style import RANK
from minidist.schedule import algorithms
from minidist.schedule.traffic import replay
from tests.support.figures import arrows, boxes, lines, texts

SCATTER = algorithms.direct_reduce_scatter(4)


def colors(axes: Axes) -> list[str]:
    return [to_hex(line.get_color()).upper() for line in axes.lines]


def test_a_job_is_drawn_with_a_line_for_each_box_that_is_not_empty() -> None:
    figure = figures.map_shuffle_reduce(
        ["a a b", "c"], [[2, 1], [0, 1]], [{"a": 2}, {"b": 1, "c": 1}]
    )
    (axes,) = figure.axes
    said = lines(axes)
    assert colors(axes) == [RANK[0], RANK[1], RANK[1]], "the colour of the reducer"
    assert axes.lines[0].get_linewidth() > axes.lines[1].get_linewidth(), "two pairs and one"
    assert {"a a b", "c", "a 2", "b 1, c 1", "reducer 1", "shuffle"} <= set(said)
    assert [t for t in said if t.isdigit()] == ["2", "1", "0", "1"]


def test_messages_are_lines_as_thick_as_their_shares_of_the_tensor() -> None:
    whole, parts = replay(algorithms.naive_broadcast(4)), replay(SCATTER)
    assert shares(whole, whole.events) == {(0, 1): 1, (0, 2): 1, (0, 3): 1}
    all_pairs = {(s, d): 0.25 for s in range(4) for d in range(4) if s != d}
    assert shares(parts, parts.events) == all_pairs
    left, right = figures.messages({"one": [whole], "all": [parts]}).axes
    lines = [[line for line in axes.lines if len(line.get_xdata()) == 2] for axes in (left, right)]
    assert [len(each) for each in lines] == [3, 12]
    assert lines[0][0].get_linewidth() > lines[1][0].get_linewidth()
    assert [list(line.get_xdata()) for line in lines[0]] == [[0, 1], [0, 2], [0, 3]]


def test_a_simulation_s_circles_stand_alone_on_the_model_s_curve() -> None:
    share = SimpleNamespace(saving=0.1, again=0.2, total=0.3)
    (axes,) = figures.time_lost({1: share, 2: share}, {1.5: 0.25}, best=1.2).axes
    shown = [np.asarray(line.get_ydata()).tolist() for line in axes.lines[:4]]
    assert shown == [[10, 10], [20, 20], [30, 30], [25]]
    assert axes.lines[3].get_linestyle() == "None"
    assert "best: 1 min" in lines(axes)


def test_with_nccl_the_program_does_not_wait() -> None:
    gloo, nccl = figures.waiting().axes
    dashed = [
        [int(p.get_y()) for p in boxes(axes) if p.get_linestyle() == "--"] for axes in (gloo, nccl)
    ]
    assert dashed == [[0], [1]], "the program; the GPU's stream"


RING = replay(algorithms.ring_all_reduce(4))


def test_ranks_stand_clockwise_from_the_top() -> None:
    (x0, top), (right, _), (x2, bottom), (left, _) = (place(rank, 4) for rank in range(4))
    assert x0 == pytest.approx(0) == x2 == pytest.approx(0)
    assert left < 0 < right
    assert bottom < 0 < top


def test_a_circle_has_the_messages_of_its_steps_and_what_is_held_after_them() -> None:
    panels = {"first": [0], "third": [2], "copy": [3]}
    first, third, copy = figures.ring_circle(RING, panels).axes
    for axes, step in ((first, 0), (third, 2), (copy, 3)):
        chunks = [f"chunk {event.chunk}" for event in RING.events if event.step == step]
        assert [text for text in texts(axes) if text.startswith("chunk")] == chunks
        assert len(arrows(axes)) == 4
        finished = [row.count((0, 1, 2, 3)) for row in RING.state(step + 1)]
        assert texts(axes).count("Σ") == sum(finished)
    assert {arrow.get_linestyle() for arrow in arrows(first)} == {"-"}
    assert "-" not in {arrow.get_linestyle() for arrow in arrows(copy)}


def test_a_star_of_one_chunk_needs_no_numbers() -> None:
    star = replay(algorithms.naive_all_reduce(4))
    collect, back = figures.ring_circle(star, {"collect": range(3), "back": range(3, 6)}).axes
    assert sorted(texts(collect)) == [*(f"rank {rank}" for rank in range(4)), "Σ"]
    assert texts(back).count("Σ") == 4


def test_the_tour_of_a_chunk_names_each_step_and_what_it_carries() -> None:
    (axes,) = figures.chunk_tour(RING, 0).axes
    carried = ["1", "1+2", "1+2+3", "Σ", "Σ", "Σ"]
    assert texts(axes)[4:] == [f"step {step + 1}\n{what}" for step, what in enumerate(carried)]


def test_a_naive_root_is_busy_one_way_and_then_the_other_and_a_ring_both_at_once() -> None:
    coming, leaving = lanes(replay(algorithms.naive_all_reduce(8)), 0)
    assert coming == [(float(step), 1.0, step + 1) for step in range(7)]
    assert leaving == [(float(step), 1.0, 0) for step in range(7, 14)]
    coming, leaving = lanes(replay(algorithms.ring_all_reduce(8)), 0)
    assert [start for start, _, _ in coming] == [start for start, _, _ in leaving]
    assert sum(length for _, length, _ in leaving) == 1.75
    assert {src for _, _, src in coming} == {7}


def test_rounds_have_an_arrow_for_each_message_in_its_senders_colour() -> None:
    schedule = algorithms.hierarchical_all_reduce(8, local=4)
    (axes,) = figures.rounds(schedule, local=4).axes
    drawn = arrows(axes)
    assert len(drawn) == sum(len(step) for step, _ in schedule.outline())
    assert {to_rgb(each.get_edgecolor()[:3]) for each in drawn} == set(map(to_rgb, RANK))
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
    cells = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}
    rows = [[cells.get((row, step), "") for step in range(5)] for row in range(4)]
    assert rows == [
        ["0", "1", "", "", ""],
        ["", "0", "1", "", ""],
        ["", "", "0", "1", ""],
        ["", "", "", "0", "1"],
    ]
    hatched = [patch.get_hatch() for patch in boxes(axes)]
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
    hops = arrows(axes)
    assert [hop.get_linewidth() > 2 for hop in hops] == [False, True] * 3
    assert texts(axes).count("9 µs") == 3
    assert "once round:\n3 × 1 µs\n+ 3 × 9 µs" in texts(axes)


def test_protocols_fill_as_many_bytes_with_data_and_flags() -> None:
    parts = {"Simple": (0, 0), "LL128": (120, 8), "LL": (4, 4)}
    (axes,) = figures.protocols(parts).axes
    rows: dict[float, list[float]] = {}
    for cell in axes.patches:
        if isinstance(cell, Rectangle):
            rows.setdefault(cell.get_y(), []).append(cell.get_width())
    assert [*rows.values()] == [[128], [120, 8], [4] * 32]


def test_in_one_memory_ranks_write_rows_read_columns_and_leave_sums_on_the_diagonal() -> None:
    panels = figures.one_memory(3).axes
    assert [len(texts(axes)) for axes in panels] == [0, 3, 3]
    filled = [
        [to_rgb(p.get_facecolor()[:3]) for p in axes.patches if p.get_facecolor()[3] == 0.55]
        for axes in panels
    ]
    a, b, c = map(to_rgb, RANK[:3])
    assert filled == [[a, a, a, b, b, b, c, c, c], [a, b, c] * 3, [a, b, c]]
