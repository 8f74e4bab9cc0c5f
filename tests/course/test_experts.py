"""The worked problem of experts."""

from course.chapters.experts.problem import layer_ms


def test_tokens_of_eight_experts_travel_longer_than_these_compute() -> None:
    travel, compute = layer_ms()
    assert 3 < travel / compute < 4
    sent = 4 * 2 * 8 * 4096 * 7168  # bytes of a GPU, 56 of 64 parts to other nodes
    assert abs(travel - 1e3 * sent * 56 / 64 / 50e9) < 1e-9
