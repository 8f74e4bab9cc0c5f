"""The capstone's grid on paper: jobs that are drawn, and the grader's sentences."""

from typing import Any

import pytest

from course.chapters.capstone import choice
from minidist.formulas.inputs import Grid
from minidist.planner.given import price
from tests.course.verdicts import accepts, refuses
from tests.support.ledger import Row, sections

SEED = 12
FITS = {"strategy": "fsdp", "data": 64, "tensor": 8, "recompute": "full"}


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """What rows of the ledger are written in: prices of grids that fit."""
    job = choice.draw(SEED)
    one, best = price(job.question, choice.grid_of(FITS)), choice.first(job)
    return {
        "FITS": FITS, "PRICE": one.seconds, "COMPUTE": one.spent["compute"],
        "BEST": best.grid, "BEST_PRICE": best.seconds,
    }  # fmt: skip


@pytest.mark.parametrize("row", sections("labs/capstone")["grid"])
def test_each_grid_is_judged(row: Row, known: dict[str, Any]) -> None:
    answer = eval(row.change.removeprefix("= "), dict(known))
    (accepts if row.kind == "right" else refuses)(choice.grid, answer, row.diagnosis)


@pytest.mark.parametrize(
    ("given", "seconds", "said"),
    [
        ({"strategy": None, "data": None}, None, "Commit to a grid: strategy, data is open."),
        (FITS | {"tensor": None}, 3, "Commit to a grid: tensor is open."),
        (Grid(**FITS), None, "Forecast the seconds of a step, too."),
    ],
)
def test_what_is_open_is_not_yet_wrong(given: Any, seconds: Any, said: str) -> None:
    assert str(choice.grid(given, seconds, SEED)) == f"Not yet. {said}"


def test_a_seed_draws_a_job_that_some_grid_trains_and_says_which() -> None:
    jobs = [choice.draw(seed) for seed in range(8)]
    assert jobs == [choice.draw(seed) for seed in range(8)]
    assert len({str(job).partition(": ")[2] for job in jobs}) == 8
    assert str(jobs[3]).startswith("Seed 3: ")
    for job in jobs:
        found = choice.first(job)
        assert found.forecast.fits
        assert price(job.question, found.grid) == found
