"""The grader of the lab on several hosts: which node a rank is on, and its local rank there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.verdict import Wrong, ask_as, formula, whole

__all__ = ["seat"]

CLUSTERS = [[4], [1, 1], [2, 2], [4, 4], [8, 8, 8], [1, 1, 1, 1, 1], [4, 2], [1, 3], [3, 5, 1, 4]]
Seat = tuple[int, int]  # the node, and the local rank


@formula
def seat(function: Callable[[int, list[int]], Seat]) -> str:
    """Grade function(rank, gpus): where a rank sits, if node n has gpus[n] ranks.

    torchrun deals ranks node by node.
    """
    seats = 0
    for gpus in CLUSTERS:
        right = [(node, local) for node, here in enumerate(gpus) for local in range(here)]
        for rank, where in enumerate(right):
            case, given = f"For rank {rank} on nodes with {gpus} ranks ", list(gpus)
            answer = ask_as(_pair, "(node, local rank)", function, rank, given, case=case)
            if given != gpus:
                raise Wrong(f"{case}the list is changed; read it only.")
            if answer != where:
                raise Wrong(f"{case}you say {answer}; it is {where}.{_why(answer, rank, gpus)}")
        seats += len(right)
    return (
        f"found {seats} ranks on {len(CLUSTERS)} clusters, also where nodes have different numbers "
        "of GPUs. torchrun works this out for you, and puts the second number into LOCAL_RANK."
    )


def _pair(answer: Any) -> Seat:
    node, local = answer
    return whole(node), whole(local)


def _why(answer: Seat, rank: int, gpus: list[int]) -> str:
    """A guess at the mistake, after a blank; "" if there is none."""
    node, local = 0, rank
    while local >= gpus[node]:
        node, local = node + 1, local - gpus[node]
    known = {
        (node + 1, local + 1): "Nodes and local ranks count from 0.",
        (node, local + 1): "Local ranks count from 0.",
        (local, node): "The node comes first, then the local rank.",
        divmod(rank, gpus[0]): "The nodes need not have as many ranks as the first.",
        (rank % len(gpus), rank // len(gpus)): "Ranks are dealt node by node, not in turns.",
    }
    return f" {known[answer]}" if answer in known else ""
