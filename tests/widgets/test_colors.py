"""The widgets' colors are those of the book's figures."""

import re
from importlib.resources import files

import pytest

from minidist.plots.style import ALGORITHM, PART, PHASE, RANK

LIBRARY = (files("minidist.plots") / "static" / "widget.css").read_text("utf-8")
COURSE = (files("course.interactive") / "static" / "widgets.css").read_text("utf-8")


def of_rank(number: str) -> str:
    """A rank's color by day."""
    found = re.search(rf"--rank-{number}: (?:light-dark\()?(#\w+)", LIBRARY)
    assert found
    return found[1].upper()


def test_ranks() -> None:
    assert [of_rank(str(number)) for number in range(8)] == [each.upper() for each in RANK]


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "halving_doubling", "tree"])
def test_algorithms(name: str) -> None:
    found = re.search(rf"\.{name} {{ --hue: var\(--rank-(\d)\)", COURSE)
    assert found
    assert of_rank(found[1]) == ALGORITHM[name]


@pytest.mark.parametrize(
    ("name", "color"),
    [
        ("parameters", PART["parameters"]),
        ("gradients", PART["gradients"]),
        ("optimizer", PART["optimizer state"]),
        ("activations", PART["activations"]),
        ("forward", PHASE["forward"]),
        ("backward", PHASE["backward"]),
    ],
)
def test_parts_and_phases(name: str, color: str) -> None:
    found = re.search(rf"--{name}: var\(--rank-(\d)\)", COURSE)
    assert found
    assert of_rank(found[1]) == color
