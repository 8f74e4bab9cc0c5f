"""The lab on grids: its figure, and what it says of a guess."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from course import figures
from course.chapters.grid import chain
from minidist.plots.style import COLORS

ONES = {"data": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1}
PLACES = [
    figures.Place(70e9, 900.0, ONES | {"data": 8, "context": 4}, "none"),
    figures.Place(5e9, 300.0, ONES | {"data": 2, "tensor": 8}, "full"),
    figures.Place(9e9, 302.0, ONES | {"data": 2, "tensor": 4}, "full"),
    figures.Place(40e9, 800.0, ONES | {"data": 8, "context": 4}, "selective"),
]


def test_points_of_the_frontier_are_in_place_and_each_kind_has_its_mark() -> None:
    (axes,) = figures.frontier(PLACES, 77e9, "room").axes
    steps, *marks, limit = axes.lines
    assert np.asarray(steps.get_xydata()).tolist() == [
        [5, 300], [9, 302], [40, 800], [70, 900], [77, 900]
    ]  # fmt: skip
    drawn: dict[Any, Any] = {each.get_label(): each for each in marks}
    assert {kind: each.get_xydata().tolist() for kind, each in drawn.items()} == {
        "none": [[70, 900]], "selective": [[40, 800]], "full": [[5, 300], [9, 302]]
    }  # fmt: skip
    assert len({each.get_marker() for each in drawn.values()}) == 3
    assert {each.get_color() for each in drawn.values()} <= {*COLORS}
    assert np.asarray(limit.get_xdata()).tolist() == [77, 77]


def test_degrees_are_named_once_and_names_do_not_touch() -> None:
    figure = figures.frontier(PLACES, 77e9, "room")
    (axes,) = figure.axes
    said, *names = axes.texts
    assert said.get_text() == "room "
    assert [each.get_text() for each in names] == ["N8 C4", "N2 T4"]
    corners = [each.get_window_extent() for each in names]
    assert all(not one.overlaps(other) for one, other in pairwise(corners))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (None, "2.2 GB."),
        (2.3, "2.2 GB; you guessed 2.3, which is close."),
        (22, "2.2 GB; you guessed 22, 10 times too much."),
        (1, "2.2 GB; you guessed 1, 2.2 times too little."),
        (0, "2.2 GB; you guessed 0, which is far from it."),
        (-2, "2.2 GB; you guessed -2, which has another sign."),
        ("many", "2.2 GB; your guess, 'many', is no number."),
    ],
)
def test_a_guess_stands_beside_the_answer(
    guess: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chain.beside(2.2, "GB", guess)
    assert capsys.readouterr().out == f"{said}\n"


def test_published_grids_are_found_by_their_fields() -> None:
    grid = chain.llama3(gpus=16_384, sequence=8192)
    assert (grid["tensor"], grid["pipeline"], grid["context"]) == (8, 16, 1)
    assert (grid["mfu"], chain.llama3(sequence=131_072)["mfu"]) == (0.41, 0.38)
