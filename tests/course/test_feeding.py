"""The graders of the chapter on feeding the ranks, and its worked problem."""

from dataclasses import replace

from course.pages.price import ask, step_of
from minidist.formulas.step import forecast
from minidist.planner.hardware import H100
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("feeding")


# ---- the worked problem ----


def test_what_no_sync_saves_with_eight_network_cards_and_with_one() -> None:
    compute = 16 * ask("compute", gpus=16, tokens=4096)
    assert round(compute, 2) == 3.54
    eight = ask("exposed", gpus=16, tokens=4096)
    assert [round(1e3 * eight, 1), round(1e3 * 16 * eight)] == [8.0, 129]
    seen = ask("exposed", gpus=16, tokens=4096, tariff="published")
    assert round(1e3 * seen, 1) == 6.9
    one = replace(step_of("small", 16, 4096), gpu=H100._replace(network=50e9 / 8))
    waited = forecast(one, "ddp")["exposed"]
    assert round(1e3 * waited) == 375
    assert [round(100 * times * waited / compute) for times in (1, 16)] == [11, 170]
