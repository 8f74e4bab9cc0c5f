"""The graders of the lab on pipelines, its solutions, and what the chapter says of its orders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minidist.schedule import pipeline
from minidist.schedule.pipeline import TAKES, Order, gpipe, most_held, replay
from tests.course.verdicts import diagnosed, names

test_each_answer_is_judged = diagnosed("pipelines")


def test_the_solutions_are_the_librarys() -> None:
    for ranks, micro in ((4, 8), (3, 2)):
        for name in ("one_f_one_b", "zero_bubble"):
            for rank, works in enumerate(getattr(pipeline, name)(ranks, micro)):
                ours = names("pipelines")[name](rank, ranks, micro)
                assert [*ours] == [(kind, m) for kind, _, m in works]
    assert max(most_held(gpipe(4, 8))) == 2 * max(most_held(pipeline.one_f_one_b(4, 8)))
    assert len(replay(gpipe(4, 8))) == 64


def ends(order: Order, takes: Mapping[str, float] = TAKES) -> float:
    return max(each.end for each in replay(order, takes))


def test_what_the_chapter_says_of_its_figures_and_its_exercise() -> None:
    thin = pipeline.interleaved(4, 4, 2)
    halves = {kind: takes / 2 for kind, takes in TAKES.items()}
    assert ends(gpipe(4, 1), {"F": 4, "B": 8}) == 48
    assert ends(gpipe(4, 4)) == 21
    assert ends(gpipe(4, 8)) == ends(pipeline.one_f_one_b(4, 8)) == 33
    assert (ends(thin, halves), ends(pipeline.zero_bubble(4, 4))) == (16.5, 15)
    assert [most / 2 for most in most_held(thin)] == [4, 4, 3.5, 2.5]
    assert most_held(pipeline.one_f_one_b(8, 64))[0] == 8
    assert abs(pipeline.bubble(replay(gpipe(8, 6))) - 7 / 13) < 1e-9


def test_the_chapters_gpipe_is_the_librarys() -> None:
    page = (Path(__file__).parents[2] / "book" / "pipelines.md").read_text()
    code = page[page.index("def gpipe") :].partition("\n\n\nfor")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["gpipe"](4, 8) == [[*map(tuple, works)] for works in gpipe(4, 8)]
