"""The graders of the lab on tensor parallelism, and its worked problem."""

from course.chapters.tensor.problem import degrees, widest
from course.pages.price import ask
from minidist.planner.hardware import H100
from minidist.planner.planner import ROOM
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("tensor")


def test_four_gpus_hold_a_sequence_and_sixteen_spend_half_as_long_on_messages() -> None:
    rows = {row[0]: row for row in degrees()}
    assert [ranks for ranks, row in rows.items() if row[1] < ROOM * H100.memory / 1e9] == [4, 8, 16]
    share = {ranks: row[3] / row[2] for ranks, row in rows.items()}
    assert share[4] < 0.11 < 0.22 < share[8] < 0.24 < 0.5 < share[16] < 0.56


def test_more_tokens_do_not_hide_the_collectives() -> None:
    def share(tokens: int) -> float:
        how = {"gpus": 8, "tensor": 8, "tokens": tokens}
        return ask("tensor", "medium", **how) / ask("matrices", "medium", **how)

    assert 0.9 * share(16_384) < share(65_536) < share(16_384)  # latency is all that they hide


def test_a_tenth_of_the_time_allows_a_node_only_in_a_wide_model() -> None:
    found = widest()
    assert 2 < found["medium_nvlink"] < 3 < 6 < found["large_nvlink"] < 8
    assert found["medium_network"] < found["large_network"] < 2
    share = 2 / 9 * found["medium_per_byte"] * (found["medium_nvlink"] - 1) / 4096
    assert abs(share - 0.1) < 1e-12
