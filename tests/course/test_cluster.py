"""The exercise of the lab on several hosts: other right ways."""

from course.chapters.cluster import exercises as grade


def node_by_node(rank: int, gpus: list[int]) -> list[int]:
    node = 0
    while rank >= gpus[node]:
        rank, node = rank - gpus[node], node + 1
    return [node, rank]


def test_another_right_way_is_right_too() -> None:
    assert grade.seat(node_by_node)
