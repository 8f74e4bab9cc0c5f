"""The grader of the lab on several hosts: which node a rank is on, and its local rank there."""

from collections.abc import Callable, Sequence
from copy import deepcopy
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
    for gpus in CLUSTERS:
        asked = [(rank, list(gpus)) for rank in range(sum(gpus))]
        check_seats(f"On nodes with {gpus} ranks", gpus, function, asked)
    return (
        f"for {sum(map(sum, CLUSTERS))} ranks on {len(CLUSTERS)} clusters, even where nodes have "
        "different numbers of GPUs. torchrun works this out for you, and puts the second number "
        "into LOCAL_RANK."
    )


def check_seats(
    case: str, gpus: Sequence[int], function: Callable[..., Seat], asked: Sequence[tuple[Any, ...]]
) -> None:
    """Raise Wrong at the first rank that does not sit where the launcher puts it.

    Args:
        case: what the cluster is.
        gpus: of each node, how many ranks it has.
        function: the learner's, which returns (node, local rank).
        asked: its arguments for each rank.
    """
    seats = [(node, local) for node, here in enumerate(gpus) for local in range(here)]
    before, answers = deepcopy(asked), []
    for rank, args in enumerate(asked):
        where = f"{case}, for rank {rank}, "
        answers.append(ask_as(_pair, "(node, local rank)", function, *args, case=where))
        if args != before[rank]:
            raise Wrong(f"{where}the list is changed; read it only.")
    for rank, (answer, right) in enumerate(zip(answers, seats, strict=True)):
        if answer != right:
            why = _why(answers, seats, gpus)
            raise Wrong(f"{case} you say that rank {rank} is {answer}; it is {right}.{why}")


def _pair(answer: Any) -> Seat:
    node, local = answer
    return whole(node), whole(local)


def _why(answers: list[Seat], seats: list[Seat], gpus: Sequence[int]) -> str:
    """A blank and the mistake that gives all of these answers; "" if none of the known ones."""
    ranks, nodes = range(len(seats)), len(gpus)
    mistakes: dict[str, list[Seat]] = {
        "Ranks are dealt node by node, not in turns.": [(r % nodes, r // nodes) for r in ranks],
        "The node comes first, then the local rank.": [(local, node) for node, local in seats],
        "Nodes and local ranks count from 0.": [(node + 1, local + 1) for node, local in seats],
        "Local ranks count from 0.": [(node, local + 1) for node, local in seats],
        "That is the global rank; local ranks count from 0 on each node.": [
            (node, rank) for rank, (node, _) in enumerate(seats)
        ],
        "The nodes need not have as many ranks as the first.": [divmod(r, gpus[0]) for r in ranks],
    }
    return next((f" {text}" for text, wrong in mistakes.items() if answers == wrong), "")
