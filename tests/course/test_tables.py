"""Exercises by table: every slip gets its sentence, and answers that are wrong to any are refused.

They are asked in this process; that a grader asks in one of its own is tested by test_verdict.py.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.ask import table as tables
from course.ask.table import Table
from course.ask.verdict import Wrong, draws
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.traffic import traffic
from tests.course.verdicts import by_table, wrong_to_any

TABLES = {f"{each.__module__}.{each.__name__}": each.table() for each in by_table()}
each_table = pytest.mark.parametrize("name", TABLES)
REFUSED = r"you (say|return) .*; (it is|expected) |it raised|is changed; read"


def said(table: Table, function: Callable[..., object]) -> str:
    """What is wrong, or "" if nothing is."""
    try:
        table.check(function)
    except Wrong as wrong:
        return str(wrong)
    return ""


@each_table
def test_what_is_right_is_called_right_and_four_slips_are_known(name: str) -> None:
    table = TABLES[name]
    assert len(table.check(table.right)) > 80
    assert len(table.slips) >= 4


@each_table
def test_who_makes_a_slip_hears_its_sentence(name: str) -> None:
    heard = {slip: said(TABLES[name], makes_it) for slip, makes_it in TABLES[name].slips.items()}
    offenders = [f"{slip} {text}" for slip, text in heard.items() if not text.endswith(f". {slip}")]
    assert not offenders, "\n".join(offenders)


@each_table
def test_what_is_wrong_to_any_table_is_refused_with_the_case(name: str) -> None:
    answers = wrong_to_any(TABLES[name])
    heard = {kind: said(TABLES[name], answer) for kind, answer in answers.items()}
    offenders = [f"{kind}: {text}" for kind, text in heard.items() if not re.search(REFUSED, text)]
    assert not offenders, "\n".join(offenders)


def test_of_two_slips_that_fit_the_one_that_fits_elsewhere_too_is_told() -> None:
    table = Table(
        cases=[(2,), (3,)],
        right=lambda ranks: ranks * ranks + 1,
        told="For {} ranks",
        solved="for {cases} numbers of ranks.",
        read=int,
        expected="a number",
        slips={"You add.": lambda ranks: ranks + ranks, "One more.": lambda ranks: ranks * ranks},
    )
    assert said(table, lambda ranks: ranks * ranks) == "For 2 ranks you say 4; it is 5. One more."
    assert said(table, lambda ranks: 2 * ranks) == "For 2 ranks you say 4; it is 5. You add."
    assert said(table, lambda ranks: 4) == "For 2 ranks you say 4; it is 5. You add."
    assert table.check(lambda ranks: ranks * ranks + 1) == "for 2 numbers of ranks."


def test_what_is_drawn_is_always_the_same_but_with_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (exercise,) = (each for each in by_table() if each.__name__ == "bytes_sent")
    first = exercise.table()
    assert exercise.table().cases == first.cases
    monkeypatch.setenv("COURSE_SEED", "417")
    assert exercise.table().cases != first.cases
    assert exercise.table().check(first.right)


def test_the_example_for_contributors_is_an_exercise() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    _, section = text.split("## Add an exercise")
    names: dict[str, Any] = {"ring_all_reduce": ring_all_reduce, "traffic": traffic, "draws": draws}
    names |= vars(tables)
    exec(section.split("```")[1].removeprefix("python"), names)
    table = names["bytes_sent"].table()
    assert table.check(table.right) == "for 7 cases: the simulator counts the same."
    for sentence, slip in table.slips.items():
        assert said(table, slip).endswith(sentence)


def test_one_thing_is_named_in_the_singular() -> None:
    table = tables.numbers(
        cases=[(1, 1, 11)],
        right=lambda *_: 1,
        told="For {} ranks, {} micro-batches and {} steps",
        solved="",
    )
    with pytest.raises(Wrong, match=r"^For 1 rank, 1 micro-batch and 11 steps you say 2 bytes"):
        table.check(lambda *_: 2)
