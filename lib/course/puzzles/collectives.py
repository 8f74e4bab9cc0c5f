"""The puzzles whose answer is a schedule, and the schedules to play with."""

from course.puzzles.tasks import Puzzle, Star, collective_task, log, two_nodes_task

UP_TO_9 = range(2, 10)
FEWEST = Star("N − 1 steps", "steps", lambda n: n - 1)
HALF_A_RING = FEWEST, Star("(N − 1)/N G sent", "sent", lambda n: (n - 1) / n)
A_RING = (
    Star("2(N − 1) steps", "steps", lambda n: 2 * (n - 1)),
    Star("2(N − 1)/N G sent", "sent", lambda n: 2 * (n - 1) / n),
)

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
        collective_task("all_reduce", range(2, 9), function="ring", one_port=False, free=True),
    ),
    Puzzle(
        "yours",
        "An all-reduce of your own",
        "Change recursive doubling, or start afresh; it is priced beside the ring.",
        DOUBLING,
        (),
        collective_task("all_reduce", (2, 4, 8), one_port=False, free=True),
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
        collective_task(
            "broadcast",
            UP_TO_9,
            Star("⌈log₂ N⌉ steps", "steps", log),
            Star("N − 1 messages", "total", lambda n: n - 1),
            chunks=lambda n: 1,
        ),
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
        collective_task("all_gather", UP_TO_9, *HALF_A_RING, only_right=True),
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
        collective_task("reduce_scatter", UP_TO_9, *HALF_A_RING),
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
        collective_task("all_reduce", UP_TO_9, *A_RING),
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
        collective_task(
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
        collective_task(
            "all_to_all",
            range(2, 7),
            FEWEST,
            Star("every block sent once", "total", lambda n: (n - 1) / n),
            chunks=lambda n: n * n,
            size="all blocks together: G = 25 MiB",
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
        two_nodes_task(),
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
        collective_task("all_reduce", UP_TO_9, *A_RING, function="ring"),
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
        collective_task(
            "all_reduce",
            UP_TO_9,
            Star("4(N − 1) steps for even N", "steps", lambda n: 4 * (n - 1), (2, 4, 6, 8)),
            Star("2(N − 1) steps for any N", "steps", lambda n: 2 * (n - 1)),
            function="ring",
            judge="programs",
        ),
    ),
)
