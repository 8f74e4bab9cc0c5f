"""Pictures of messages: each arrow, label and bar is one that the replay has."""

import pytest

from course import figures
from course.figures.ring import lanes, place
from minidist.schedule import algorithms
from minidist.schedule.cost import Link
from minidist.schedule.simulate import replay
from tests.support.figures import arrows, texts

RING = replay(algorithms.ring_all_reduce(4))


def test_ranks_stand_clockwise_from_the_top() -> None:
    (x0, top), (right, _), (x2, bottom), (left, _) = (place(rank, 4) for rank in range(4))
    assert x0 == pytest.approx(0) == x2 == pytest.approx(0)
    assert left < 0 < right
    assert bottom < 0 < top


def test_a_circle_has_the_messages_of_its_steps_and_what_is_held_after_them() -> None:
    panels = {"first": [0], "third": [2], "copy": [3]}
    first, third, copy, _ = figures.ring_circle(RING, panels).axes
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


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    figure = figures.message_times(Link(10e-6, 1 / 50e9), {"small": 5e3, "even": 500e3})
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([10, 0.1, 10, 10])
    assert " 20 µs, 25 GB/s" in texts(axes)


def test_one_rank_runs_what_the_schedule_says_of_it() -> None:
    axes = figures.readings(RING, rank=1).axes
    said = [text for each in axes for text in texts(each)]
    assert "step 1:   0 → 1: chunk 3,   1 → 2: chunk 0,   2 → 3: chunk 1,   3 → 0: chunk 2" in said
    own = [text for text in said if "send" in text]
    assert own[0] == "1:  send 0,  add 3"
    assert own[-1] == "6:  send 3,  keep 2"
