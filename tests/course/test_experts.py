"""The worked problem of experts."""

from course.chapters.experts.problem import CHOSEN, GPUS, crossing, layer_ms


def test_tokens_of_eight_experts_travel_longer_than_these_compute() -> None:
    travel, compute = layer_ms()
    assert 3 < travel / compute < 4
    sent = 4 * 2 * 8 * 4096 * 7168  # bytes of a GPU, 56 of 64 parts to other nodes
    assert abs(travel - 1e3 * sent * 56 / 64 / 50e9) < 1e-9


def test_four_nodes_and_fp8_leave_less_than_half_of_it() -> None:
    assert crossing() == 4 * CHOSEN * (GPUS - 8) / GPUS  # seven of eight copies leave the node
    assert crossing(4, 1, 2) == 12
