"""The puzzles whose answer is a schedule, and the schedules to play with."""

from typing import Any

from course.puzzles.tasks import Puzzle, collective_task, log, mark, steps_and_bytes, two_nodes_task

UP_TO_9 = range(2, 10)
POWERS, OTHERS = (2, 4, 8, 16), (3, 5, 6, 7, 9)


def fewest(n: int) -> float:
    """The steps of half a ring."""
    return n - 1


def ring_marks() -> list[Any]:
    """Right, with the steps and bytes of the ring."""
    steps = "2(N − 1) steps", lambda n: 2 * (n - 1)
    return steps_and_bytes(UP_TO_9, steps, ("2(N − 1)/N G sent", lambda n: 2 * (n - 1) / n))


def half_a_ring() -> list[Any]:
    """The same for a reduce-scatter or an all-gather."""
    steps = "N − 1 steps", fewest
    return steps_and_bytes(UP_TO_9, steps, ("(N − 1)/N G sent", lambda n: (n - 1) / n))


def broadcast_marks() -> list[Any]:
    return [
        mark("right for 2 to 9 ranks", UP_TO_9),
        mark("⌈log₂ N⌉ steps", UP_TO_9, "steps", log),
        mark("N − 1 messages", UP_TO_9, "total", fewest),
    ]


def log_marks() -> list[Any]:
    return [
        mark("right for 2, 4, 8 and 16 ranks", POWERS),
        mark("log₂ N steps", POWERS, "steps", log),
        mark("for 3, 5, 6, 7 and 9 ranks, two steps more than for the power of two below them",
             OTHERS, "steps", lambda n: n.bit_length() + 1),
    ]  # fmt: skip


def all_to_all_marks() -> list[Any]:
    ranks = range(2, 7)
    return [
        mark("right for 2 to 6 ranks", ranks),
        mark("N − 1 steps", ranks, "steps", fewest),
        mark("every block sent once", ranks, "total", lambda n: (n - 1) / n),
    ]


def program_marks() -> list[Any]:
    return [
        mark("right for 2 to 9 ranks", UP_TO_9),
        mark("4(N − 1) steps for even N", (2, 4, 6, 8), "steps", lambda n: 4 * (n - 1)),
        mark("2(N − 1) steps for any N", UP_TO_9, "steps", lambda n: 2 * (n - 1)),
    ]


RING = """\
def ring(ranks):
    for first, reduce in ((-1, True), (0, False)):  # add, then copy
        for t in range(ranks - 1):
            yield [
                Send(rank, (rank + 1) % ranks, (rank + first - t) % ranks, reduce)
                for rank in range(ranks)
            ]
"""

DOUBLING = """\
chunks = 1  # without this line, as many as ranks


def all_reduce(ranks):  # so far only for 2, 4 and 8
    distance = 1
    while distance < ranks:
        yield [Send(rank, rank ^ distance, 0, True) for rank in range(ranks)]
        distance *= 2
"""

TO_PLAY = (
    Puzzle(
        "ring",
        "The ring, to change",
        "Break it, run it, mend it. Send it the other way round; or add in both halves.",
        RING,
        (),
        lambda: collective_task(
            "all_reduce", "ring", [mark("", range(2, 9))], one_port=False, free=True
        ),
    ),
    Puzzle(
        "yours",
        "An all-reduce of your own",
        "Change recursive doubling, or start afresh; it is priced beside the ring.",
        DOUBLING,
        (),
        lambda: collective_task(
            "all_reduce",
            "all_reduce",
            [mark("", (2, 4, 8))],
            one_port=False,
            free=True,
        ),
    ),
)

PUZZLES = (
    Puzzle(
        "broadcast",
        "Broadcast",
        "Rank 0 has a tensor of one chunk. Bring it to all ranks in ⌈log₂ N⌉ steps.",
        """\
def broadcast(ranks):
    for rank in range(1, ranks):
        yield [Send(0, rank, 0, False)]
""",
        (
            "After the first step two ranks have the tensor. Who can send in the second?",
            "Before a step of distance d, ranks 0 to d − 1 have it; rank r sends to r + d.",
        ),
        lambda: collective_task("broadcast", "broadcast", broadcast_marks(), lambda n: 1),
    ),
    Puzzle(
        "all_gather",
        "All-gather around a ring",
        "Rank r has chunk r. Bring all chunks to all ranks; each may send only to its right "
        "neighbor, rank r + 1 modulo N.",
        """\
def all_gather(ranks):
    for t in range(ranks - 1):
        yield [Send(rank, (rank + 1) % ranks, rank, False) for rank in range(ranks)]
""",
        (
            "Only the first step is right. Which chunk has rank r not yet passed on after it?",
            "A rank passes on what it has just received.",
        ),
        lambda: collective_task("all_gather", "all_gather", half_a_ring(), only_right=True),
    ),
    Puzzle(
        "reduce_scatter",
        "Reduce-scatter",
        "Rank r ends with the sum of chunk r, and sends no more than it has to.",
        """\
def reduce_scatter(ranks):
    for t in range(1, ranks):
        yield [Send(t, 0, 0, True)]  # chunk 0 is done; and the others?
""",
        (
            "In a step every rank can send one chunk and receive one.",
            "In step t, rank r can send straight to rank r + t. Which chunk does that rank want?",
        ),
        lambda: collective_task("reduce_scatter", "reduce_scatter", half_a_ring()),
    ),
    Puzzle(
        "all_reduce",
        "All-reduce in 2(N − 1) steps",
        "Every rank ends with all sums, and none sends more than 2(N − 1)/N tensors.",
        """\
def all_reduce(ranks):
    for rank in range(1, ranks):
        yield [Send(rank, 0, 0, True, ranks)]  # the last argument: how many chunks
    for rank in range(1, ranks):
        yield [Send(0, rank, 0, False, ranks)]
""",
        (
            "The steps are few enough, but rank 0 does all the work. Let rank r add up chunk r.",
            "You have solved both halves already: a reduce-scatter, then an all-gather.",
        ),
        lambda: collective_task("all_reduce", "all_reduce", ring_marks()),
    ),
    Puzzle(
        "log_steps",
        "All-reduce in few steps",
        "The tensor is one chunk. First for a power of two, in log₂ N steps; then for any N.",
        """\
def all_reduce(ranks):
    for distance in (1, 2):
        yield [Send(rank, rank ^ distance, 0, True) for rank in range(ranks)]
""",
        (
            "Two steps do for four ranks. `distance` has to go on: 4, 8, … below N.",
            "With six ranks, two can give their tensors to a neighbor first, and wait.",
        ),
        lambda: collective_task("all_reduce", "all_reduce", log_marks(), lambda n: 1),
    ),
    Puzzle(
        "all_to_all",
        "All-to-all",
        "Chunk s·N + d is the block that rank s has for rank d. Bring each block where it belongs.",
        """\
def all_to_all(ranks):
    for dst in range(1, ranks):
        yield [Send(0, dst, dst, False)]  # the blocks of rank 0
""",
        (
            "Let all ranks send at once, each to another one.",
            "In step t, rank r sends to rank (r + t) mod N.",
        ),
        lambda: (
            collective_task("all_to_all", "all_to_all", all_to_all_marks(), lambda n: n * n)
            | {"size": "all blocks together: G = 25 MiB"}
        ),
    ),
    Puzzle(
        "two_nodes",
        "Two nodes",
        "Ranks 0 to N/2 − 1 are one node, the others the second. Inside, NVLink; between, a "
        "network card for each rank. Send as little as possible over the network, and be quick.",
        RING.replace("def ring", "def all_reduce"),
        (
            "Each node can first sum up its own parts: a reduce-scatter inside.",
            "Then rank r and its partner in the other node exchange what they own: 2/N of the "
            "tensor, which they can halve again.",
        ),
        lambda: two_nodes_task("all_reduce"),
    ),
    Puzzle(
        "adds_twice",
        "Mend: a ring that adds twice",
        "This ring ran, with all shapes right, and its sums were too large.",
        """\
def ring(ranks):
    for t in range(2 * (ranks - 1)):
        yield [
            Send(rank, (rank + 1) % ranks, (rank - 1 - t) % ranks, True)
            for rank in range(ranks)
        ]
""",
        (
            "Step through it: in which step is a sum complete, and what happens to it next?",
            "A complete sum is copied, not added.",
        ),
        lambda: collective_task("all_reduce", "ring", ring_marks()),
    ),
    Puzzle(
        "deadlock",
        "Mend: a ring that deadlocks",
        "Here you write what *one* rank does: `send(dst, chunk)` waits until `dst` receives, "
        "`recv(src, chunk, reduce)` until `src` sends. All ranks begin by sending, and none ends.",
        """\
def ring(rank, ranks):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for t in range(2 * (ranks - 1)):
        yield send(right, (rank - 1 - t) % ranks)
        yield recv(left, (rank - 2 - t) % ranks, t < ranks - 1)
""",
        (
            "If even ranks begin with `recv` and odd ones with `send`, each meets its partner.",
            "`yield [send(…), recv(…)]` posts both at once, as `batch_isend_irecv` does.",
        ),
        lambda: collective_task("all_reduce", "ring", program_marks(), judge="programs"),
    ),
)
