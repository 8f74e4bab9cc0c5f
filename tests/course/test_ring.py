"""The ring: its prices by hand, and wrong answers for the graders of its lab."""

from collections import Counter

import pytest
import torch

from course.ask.switchboard import Deadlock
from course.ask.verdict import Grader, Verdict
from course.chapters.gpus import figures as drawn
from course.chapters.ring.threads import Exchange, Threads
from course.pages.price import ask, step_of
from course.pages.published import curve
from course.timing.fits import at_size, through_ends
from minidist.formulas.memory import bucket_bytes
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("ring")


def test_a_deadlock_between_threads_is_found_at_once_and_named() -> None:
    def all_wait(rank: int, exchange: Exchange) -> None:
        exchange(torch.zeros(1), (rank + 1) % 3, (rank + 1) % 3)

    with pytest.raises(Deadlock, match="3 ranks wait for one another in a circle: rank 0 for"):
        Threads(3).run(all_wait)

    def one_leaves(rank: int, exchange: Exchange) -> None:
        if rank:
            exchange(torch.zeros(1), (rank + 1) % 3, (rank - 1) % 3)

    with pytest.raises(Deadlock, match=r"^rank 1 waits for rank 0, which has ended"):
        Threads(3).run(one_leaves)


def test_a_verdict_is_shown_as_text_and_without_markup_of_its_own() -> None:
    verdict = Verdict("wrong", "a < b\nand more")
    assert str(verdict) == "Wrong. A < b\nand more"
    shown = verdict._repr_html_()
    assert shown.endswith('"><b>Wrong.</b> A &lt; b<br>and more</p>')
    assert "#cf222e" in shown, "red, in Jupyter too"
    assert str(Verdict("right", "for 9 lists. So it is.")) == "Correct for 9 lists. So it is."
    assert str(Verdict("right", "the judge agrees.")) == "Correct. The judge agrees."


def test_a_grader_remembers_what_was_right_first() -> None:
    grade_it = Grader(lambda function: function())
    with pytest.raises(RuntimeError, match="first solve the exercise above"):
        _ = grade_it.solved

    def mine() -> str:
        return "tried"

    def solution() -> str:
        return "tried too"

    assert grade_it(mine)
    assert grade_it(solution)
    assert grade_it.solved is mine


@pytest.mark.parametrize(
    ("gpus", "at_line_rate", "as_published"),
    [(8, 50.0, 46.6), (16, 60.4, 51.4), (32, 62.6, 68.1), (64, 64.1, 78.9)],
)
def test_sums_of_the_small_model(gpus: int, at_line_rate: float, as_published: float) -> None:
    least = 2 * (gpus - 1) / gpus * 4 * 3_212_749_824 / (450e9 if gpus == 8 else 400e9)
    line_rate, published = (ask("all_reduce", gpus=gpus, tariff=t) for t in TARIFFS)
    assert least < line_rate < 1.015 * least, "a ring's bytes, and its latency"
    assert (1e3 * line_rate, 1e3 * published) == pytest.approx(
        (at_line_rate, as_published), abs=0.1
    )


TARIFFS = "line rate", "published"


def test_most_buckets_of_the_small_model_are_as_large_as_the_mark_in_the_figure() -> None:
    mebibytes = Counter(round(size / 2**20) for size in bucket_bytes(step_of("small", 8, 8192)))
    assert mebibytes == {96: 84, 60: 28, 36: 28, 1503: 1}
    assert drawn.MARK == 96 * 2**20


@pytest.mark.parametrize(
    ("name", "ratio"), [("h100-1x8-nvls", 0.82), ("h100-2x8-ib", 0.69), ("a100-1x8-nvlink", 0.79)]
)
def test_one_line_is_off_by_a_quarter_for_most_buckets(name: str, ratio: float) -> None:
    rows = curve(name)["rows"]
    found = through_ends(rows)(drawn.MARK) / at_size(rows, drawn.MARK)
    assert found == pytest.approx(ratio, abs=0.005)
