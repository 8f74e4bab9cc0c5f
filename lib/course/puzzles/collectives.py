"""The puzzles whose answer is a schedule, and the schedules to play with."""

from course.puzzles.tasks import Star, collective_task, log, two_nodes_task

UP_TO_9 = range(2, 10)
FEWEST = Star("N − 1 steps", "steps", lambda n: n - 1)
HALF_A_RING = FEWEST, Star("(N − 1)/N G sent", "sent", lambda n: (n - 1) / n)
A_RING = (
    Star("2(N − 1) steps", "steps", lambda n: 2 * (n - 1)),
    Star("2(N − 1)/N G sent", "sent", lambda n: 2 * (n - 1) / n),
)

TASKS = {
    "ring": collective_task("all_reduce", range(2, 9), function="ring", one_port=False, free=True),
    "yours": collective_task("all_reduce", (2, 4, 8), one_port=False, free=True),
    "broadcast": collective_task(
        "broadcast",
        UP_TO_9,
        Star("⌈log₂ N⌉ steps", "steps", log),
        Star("N − 1 messages", "total", lambda n: n - 1),
        chunks=lambda n: 1,
    ),
    "all_gather": collective_task("all_gather", UP_TO_9, *HALF_A_RING, only_right=True),
    "reduce_scatter": collective_task("reduce_scatter", UP_TO_9, *HALF_A_RING),
    "all_reduce": collective_task("all_reduce", UP_TO_9, *A_RING),
    "log_steps": collective_task(
        "all_reduce",
        (2, 4, 8, 16),
        Star("log₂ N steps", "steps", log),
        Star(
            "for 3, 5, 6, 7 and 9 ranks, two steps more than for the power of two below them",
            "steps",
            lambda n: n.bit_length() + 1,
            (3, 5, 6, 7, 9),
        ),
        chunks=lambda n: 1,
    ),
    "all_to_all": collective_task(
        "all_to_all",
        range(2, 7),
        FEWEST,
        Star("every block sent once", "total", lambda n: (n - 1) / n),
        chunks=lambda n: n * n,
        size="all blocks together: G = 25 MiB",
    ),
    "two_nodes": two_nodes_task(),
    "adds_twice": collective_task("all_reduce", UP_TO_9, *A_RING, function="ring"),
    "deadlock": collective_task(
        "all_reduce",
        UP_TO_9,
        Star("4(N − 1) steps for even N", "steps", lambda n: 4 * (n - 1), (2, 4, 6, 8)),
        Star("2(N − 1) steps for any N", "steps", lambda n: 2 * (n - 1)),
        function="ring",
        judge="programs",
    ),
}
