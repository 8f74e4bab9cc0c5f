"""The grader of the lab on several hosts: which node a rank is on, and its local rank there."""

from bisect import bisect_right
from itertools import accumulate

from course.ask.table import Exercise, Seat, Table, seats
from course.ask.verdict import draws

CLUSTERS = [[4], [1, 1], [2, 2], [4, 4], [8, 8, 8], [1, 1, 1, 1, 1], [4, 2], [1, 3], [3, 5, 1, 4]]


@Exercise
def seat() -> Table:
    """Grade function(rank, gpus): where a rank sits, if node n has gpus[n] ranks.

    torchrun deals ranks node by node.
    """
    draw = draws(91)
    clusters = [*CLUSTERS, *([draw.randrange(1, 9) for _ in range(n)] for n in (3, 6))]

    def place(rank: int, gpus: list[int]) -> Seat:
        firsts = [0, *accumulate(gpus)]
        node = bisect_right(firsts, rank) - 1
        return node, rank - firsts[node]

    return seats(
        place,
        {
            "Ranks are dealt node by node, not in turns.":
                lambda rank, gpus: divmod(rank, len(gpus))[::-1],
            "The nodes need not have as many ranks as the first.":
                lambda rank, gpus: divmod(rank, gpus[0]),
        },
        cases=[(rank, gpus) for gpus in clusters for rank in range(sum(gpus))],
        told="For rank {}, on nodes with {} ranks,",
        solved=f"for {{cases}} ranks on {len(clusters)} clusters, even where nodes have different "
        "numbers of GPUs. torchrun works this out for you, and puts the second number into "
        "LOCAL_RANK.",
    )  # fmt: skip
