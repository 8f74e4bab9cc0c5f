"""The graders of the lab on tensor parallelism, and its worked problem."""

from course.chapters.tensor.problem import degrees, per_byte
from course.pages.price import ask
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("tensor")


def test_four_gpus_hold_a_sequence_and_sixteen_spend_half_as_long_on_messages() -> None:
    rows = {row[0]: row for row in degrees()}
    assert [ranks for ranks, row in rows.items() if "(no)" not in row[1]] == [4, 8, 16]
    share = {ranks: row[3] / row[2] for ranks, row in rows.items()}
    assert share[4] < 0.11 < 0.22 < share[8] < 0.24 < 0.5 < share[16] < 0.56


def test_more_tokens_do_not_hide_the_collectives() -> None:
    def share(tokens: int) -> float:
        how = {"gpus": 8, "tensor": 8, "tokens": tokens}
        return ask("tensor", "medium", **how) / ask("matrices", "medium", **how)

    assert 0.9 * share(16_384) < share(65_536) < share(16_384)  # latency is all that they hide


def test_the_formula_gives_nearly_twice_the_share_in_the_table() -> None:
    formula, (_, _, compute, sent, *_) = 2 / 9 * per_byte() * 7 / 4096, degrees()[3]
    assert 1.7 < formula / (sent / compute) < 1.8
