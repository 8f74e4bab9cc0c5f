"""Collectives: prices by hand, and wrong answers for the graders of the lab."""

from typing import Any

import pytest

from course.chapters.collectives import exercises as grade
from course.pages.price import ask
from minidist.schedule.algorithms import pairwise_all_to_all
from minidist.schedule.traffic import traffic
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("collectives")


def test_no_two_pictures_are_alike() -> None:
    shown = {(each.start, each.goal) for each in grade.pictures().values()}
    assert len(shown) == 6


def test_tokens_to_experts_go_through_each_rank_s_own_network_card() -> None:
    nbytes, blocks = 8192 * 4096 * 2, 64 * 64
    sent = traffic(pairwise_all_to_all(64), blocks, itemsize=1, local=8)
    out = sent.between_nodes / blocks  # of the tokens of a rank
    assert out == 56 / 64
    assert ask("all_to_all", "medium", gpus=64) == pytest.approx(out * nbytes / 50e9)
    assert ask("all_to_all", "medium", gpus=8) == pytest.approx(7 / 8 * nbytes / 450e9)


def test_calls_of_a_model_are_compared_with_its_own_compute() -> None:
    def share(what: str, job: str, strategy: str) -> float:
        how: Any = {"gpus": 64, "strategy": strategy}
        return ask(what, job, **how) / ask("compute", job, **how)

    assert share("all_reduce", "small", "ddp") == pytest.approx(0.117, abs=5e-4)
    assert share("all_gather", "medium", "fsdp") == pytest.approx(0.037, abs=5e-4)
    assert share("communication", "medium", "fsdp") == pytest.approx(0.171, abs=5e-4)
