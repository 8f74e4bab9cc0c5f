"""The puzzles whose answer is a schedule, and the schedules to play with."""

from course.puzzles.tasks import Star, collective_task, log, two_nodes_task

UP_TO_9, POWERS = range(2, 10), (2, 4, 8)


def of_ring(n: int) -> float:
    """The tensors that each rank sends in half of a ring all-reduce."""
    return (n - 1) / n


SENDS_LEAST = Star("(N − 1)/N G sent", {"sent": of_ring})
A_RING = Star("2(N − 1)/N G sent", {"sent": lambda n: 2 * of_ring(n)})
# Each chunk needs 2N - 2 messages, as `tasks.least_of_two_nodes` says: for N chunks, one to a
# message, that is 2N - 2 steps. Around a ring of more than two it is, whatever a message holds:
# who has added a left neighbor's part cannot add that twice, so of each chunk one rank after the
# other has the sum, and one after the other copies it.
STEPS = "2(N − 1) steps"

TASKS = {
    "ring": collective_task("all_reduce", range(2, 9), function="ring", one_port=False, free=True),
    "yours": collective_task("all_reduce", (2, 4, 8), one_port=False, free=True),
    "broadcast": collective_task(
        "broadcast",
        UP_TO_9,
        Star("⌈log₂ N⌉ steps", {"steps": log}),
        Star("N − 1 messages", {"total": lambda n: n - 1}),
        chunks=lambda n: 1,
    ),
    "all_gather": collective_task(
        "all_gather",
        UP_TO_9,
        Star("N − 1 steps", {"steps": lambda n: n - 1}),
        SENDS_LEAST,
        only_right=True,
    ),
    "reduce_scatter": collective_task(
        "reduce_scatter",
        UP_TO_9,
        SENDS_LEAST,
        Star("log₂ N steps for 2, 4 and 8 ranks", {"steps": log, "sent": of_ring}, POWERS),
    ),
    "all_reduce": collective_task(
        "all_reduce",
        UP_TO_9,
        A_RING,
        # With fewer steps a chunk would need more than 2N - 2 messages.
        Star(
            "2 log₂ N − 1 steps for 2, 4 and 8 ranks, with as little sent",
            {"steps": lambda n: 2 * log(n) - 1, "sent": lambda n: 2 * of_ring(n)},
            POWERS,
        ),
    ),
    "log_steps": collective_task(
        "all_reduce",
        (2, 4, 8, 16),
        Star("log₂ N steps", {"steps": log}),
        # In ⌈log₂ N⌉ steps all ranks would have to end in the last one, by adding two parts of
        # the sum: two such messages for every N parts, which an odd number of ranks does not have.
        Star(
            "⌈log₂ N⌉ steps for 6 ranks, and one more for 3, 5, 7 and 9",
            {"steps": lambda n: log(n) + n % 2},
            (3, 5, 6, 7, 9),
        ),
        chunks=lambda n: 1,
    ),
    "all_to_all": collective_task(
        "all_to_all",
        range(2, 7),
        Star("every block sent once", {"total": of_ring}),
        Star("that in N − 1 steps", {"steps": lambda n: n - 1, "total": of_ring}),
        chunks=lambda n: n * n,
        size="all blocks together: G = 25 MiB",
    ),
    "two_nodes": two_nodes_task(),
    "adds_twice": collective_task(
        "all_reduce",
        UP_TO_9,
        A_RING,
        Star(f"{STEPS} for 3 to 9 ranks", {"steps": lambda n: 2 * (n - 1)}, range(3, 10)),
        function="ring",
        only_right=True,
    ),
    "deadlock": collective_task(
        "all_reduce",
        UP_TO_9,
        Star("4(N − 1) steps for even N", {"steps": lambda n: 4 * (n - 1)}, (2, 4, 6, 8)),
        Star(f"{STEPS} for any N", {"steps": lambda n: 2 * (n - 1)}),
        function="ring",
        judge="programs",
    ),
}
