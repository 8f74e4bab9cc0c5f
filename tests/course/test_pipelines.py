"""The graders of the lab on pipelines: wrong answers, and what its solutions are."""

from minidist.schedule import pipeline
from minidist.schedule.pipeline import gpipe, most_held, replay
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
