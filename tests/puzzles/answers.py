"""Answers that readers may give, and what they should be told."""

from course.puzzles.catalog import PUZZLES

# What the judge says of the code that a puzzle begins with, and the stars it has.
STUBS = {
    "broadcast": ("With 2 to 9 ranks every rank ends with the tensor of rank 0.", 2),
    "all_gather": ("Rank 0 never receives chunk 1.", 0),
    "reduce_scatter": ("Rank 1 ends without the part of rank 0 in chunk 1.", 0),
    "all_reduce": ("With 2 to 9 ranks every rank ends with the part of every rank, once", 2),
    "log_steps": ("Step 2: rank 0 sends chunk 0 to rank 2. There is no rank 2, only 0 to 1.", 0),
    "all_to_all": ("Rank 0 never receives chunk 2.", 0),
    "two_nodes": ("With 4, 6 and 8 ranks every rank ends with the part of every rank", 1),
    "adds_twice": ("both have the part of rank 0 in it. So it counts twice", 0),
    "deadlock": (
        "Deadlock: rank 0 waits until rank 1 receives, rank 1 waits until rank 0 receives.",
        0,
    ),
    "buckets": ("Every gradient travels once; the last has arrived after 19.03 ms.", 1),
    "fsdp": ("the step takes 60 ms.", 1),
    "pipeline": ("none holds more than 4; the step takes 96 ms.", 1),
}


def changed(name: str, old: str, new: str) -> str:
    """Our solution of a puzzle with one change."""
    solution = PUZZLES[name].solution
    assert solution.count(old) >= 1, (name, old)
    return solution.replace(old, new, 1)


# name: (code, a sentence of the report)
WRONG = {
    "broadcast": [
        (
            changed("broadcast", "            if rank + distance < ranks\n", ""),
            "Step 2: rank 1 sends chunk 0 to rank 3. There is no rank 3, only 0 to 2.",
        ),
        (
            changed("broadcast", "range(distance)", "range(ranks)"),
            "Step 1: rank 1 sends chunk 0 while rank 0 overwrites it.",
        ),
        (changed("broadcast", "0, False", "0, True"), "which has nothing there to add it to."),
        (changed("broadcast", "distance = 1", "distance = 2"), "Rank 1 never receives the tensor."),
        (
            "def broadcast(ranks):\n    yield [Send(0, r, 0, False) for r in range(1, ranks)]\n",
            "Step 1: rank 0 sends two messages, and may send one.",
        ),
        ("def broadcast(ranks):\n    return 3\n", "broadcast(2) returns 3: it has to yield steps"),
        ("def cast(ranks):\n    yield []\n", "There is no function broadcast any more."),
    ],
    "all_gather": [
        (changed("all_gather", "(rank + 1)", "(rank - 1)"), "which is not its right neighbor."),
        (changed("all_gather", "ranks - 1", "ranks - 2"), "Rank 0 never receives chunk 1."),
        (
            changed("all_gather", "rank - t", "rank + t"),
            "Step 2: rank 0 sends chunk 1 to rank 1, but has nothing there to send.",
        ),
        (
            changed("all_gather", "rank - t) % ranks", "rank - t)"),
            "There is no chunk -1, only 0 to 2.",
        ),
        (changed("all_gather", "False", "True"), "which has nothing there to add it to."),
    ],
    "reduce_scatter": [
        (
            changed("reduce_scatter", "True", "False"),
            "Rank 0 ends without the part of rank 0 in chunk 0.",
        ),
        (
            changed("reduce_scatter", "(rank + t) % ranks, True", "rank, True"),
            "Rank 0 ends without the part of rank 1 in chunk 0.",
        ),
        (changed("reduce_scatter", "range(1, ranks)", "range(ranks)"), "to rank 0, itself."),
        (
            changed("reduce_scatter", "(rank + t) % ranks, (", "0, ("),
            "Step 1: rank 0 sends chunk 1 to rank 0, itself.",
        ),
        (
            changed("reduce_scatter", "range(1, ranks)", "range(1, ranks + 2)"),
            "to rank 0, itself.",
        ),
    ],
    "all_reduce": [
        (
            changed("all_reduce", "-1, True", "0, True"),
            "Rank 0 ends without the part of rank 1 in chunk 0.",
        ),
        (
            changed("all_reduce", "(0, False)", "(0, True)"),
            "So it counts twice",
        ),
        (
            changed("all_reduce", "ranks - 1", "ranks - 2"),
            "Rank 0 ends without the part of rank 1 in chunk 0.",
        ),
        (changed("all_reduce", "reduce)\n", "1.5)\n"), "whose reduce is 1.5, not True or False."),
        (
            changed("all_reduce", "(rank + 1) % ranks", "rank + 1"),
            "Step 1: rank 1 sends chunk 0 to rank 2. There is no rank 2, only 0 to 1.",
        ),
        (
            changed("all_reduce", "(rank + 1) % ranks", "(rank + 1) / ranks"),
            "whose dst is 0.5, not a whole number.",
        ),
    ],
    "log_steps": [
        (changed("log_steps", "distance *= 2", "distance += 1"), "So it counts twice"),
        (
            changed("log_steps", "distance = 1", "distance = 2"),
            "Rank 0 ends without the part of rank 1 in the tensor.",
        ),
        (changed("log_steps", "rank ^ distance", "rank"), "to rank 0, itself."),
        (
            changed("log_steps", "0, True) for rank in range(power)", "1, True) for rank in [0]"),
            "There is no chunk 1, only 0, the full tensor.",
        ),
        (
            "def all_reduce(ranks):\n    yield [Send(r, 0, 0, True) for r in (1, 1)]\n",
            "Step 1: rank 0 receives two messages to add.",
        ),
    ],
    "all_to_all": [
        (
            changed("all_to_all", "rank * ranks + (rank + t) % ranks", "(rank + t) % ranks"),
            "but has nothing there to send.",
        ),
        (changed("all_to_all", "False", "True"), "which has nothing there to add it to."),
        (changed("all_to_all", "range(1, ranks)", "range(2, ranks)"), "Rank 0 never receives"),
        (
            changed("all_to_all", "(rank + t) % ranks, rank", "t, rank"),
            "itself.",
        ),
        (
            "def all_to_all(ranks):\n    yield [Send(r, d, r * ranks + d, False)\n"
            "           for r in range(ranks) for d in range(ranks) if r != d]\n",
            "Step 1: rank 0 sends two messages, and may send one.",
        ),
    ],
    "two_nodes": [
        (
            changed("two_nodes", "    yield from exchange(lambda node: 1 - node, True)\n", ""),
            "ends without the part of rank",
        ),
        (
            changed("two_nodes", "1 - node, True", "0, True"),
            "the part of ranks 0 and 1 in chunk 1.",
        ),
        (
            changed("two_nodes", "(rank + local) % ranks", "rank + local"),
            "There is no rank 4, only 0 to 3.",
        ),
        (
            changed("two_nodes", "2 * (rank % local)", "2 * rank"),
            "There is no chunk 4, only 0 to 3.",
        ),
        (changed("two_nodes", "ring(-1, True)", "ring(0, True)"), "ends without the part of rank"),
    ],
    "adds_twice": [
        (changed("adds_twice", "t < ranks - 1", "t < ranks"), "So it counts twice"),
        (
            changed("adds_twice", "t < ranks - 1", "False"),
            "Rank 0 ends without the part of rank 0 in chunk 0.",
        ),
        (
            changed("adds_twice", "t < ranks - 1", "t < ranks - 2"),
            "Rank 0 ends without the part of rank 0 in chunk 0.",
        ),
        (
            changed("adds_twice", "2 * (ranks - 1)", "ranks - 1"),
            "Rank 0 ends without the part of rank 1 in chunk 1.",
        ),
        (changed("adds_twice", "t < ranks - 1", "ranks"), "whose reduce is 2, not True or False."),
    ],
    "deadlock": [
        (
            changed("deadlock", "(rank - 2 - t)", "(rank - 1 - t)"),
            "Rank 0 sends chunk 1 to rank 1, which expects chunk 0.",
        ),
        (
            changed("deadlock", "recv(left", "recv(right"),
            "With 3 ranks:",
        ),
        (
            "def ring(rank, ranks):\n    if rank == 0:\n        yield send(1, 0)\n",
            "Rank 0 waits until rank 1 receives, which has finished.",
        ),
        (
            "def ring(rank, ranks):\n    yield recv((rank - 1) % ranks, 0, True)\n"
            "    yield send((rank + 1) % ranks, 0)\n",
            "Deadlock: rank 0 waits until rank 1 sends, rank 1 waits until rank 0 sends.",
        ),
        (
            "def ring(rank, ranks):\n    yield 3\n",
            "Rank 0 yields 3: it may yield send(...), recv(...) or a list.",
        ),
        (
            "def ring(rank, ranks):\n    yield send(ranks, 0)\n",
            "Rank 0 yields send with rank 2, which is no other rank.",
        ),
        (changed("deadlock", "t < ranks - 1", "True"), "So it counts twice"),
    ],
    "buckets": [
        (
            "def buckets(layers):\n    yield [layers[0][0]]\n",
            "The gradient of head, block 0, block 1, block 2, block 3, block 4 and block 5 never",
        ),
        (
            changed("buckets", "names[5:]", "names[4:]"),
            "The gradient of 'block 2' travels twice.",
        ),
        (
            "def buckets(layers):\n    yield 'head'\n",
            "It yields 'head': a bucket is a list of names of layers.",
        ),
        ("def buckets(layers):\n    yield ['tail']\n", "there is no layer 'tail'."),
        ("def buckets(layers):\n    yield []\n", "It yields []: a bucket is a list of names"),
        ("def buckets(layers):\n    return\n", "buckets(...) returns None: it has to yield."),
    ],
    "fsdp": [
        (
            changed("fsdp", "    yield gather(0)\n", ""),
            "forward(0): unit 0 is not in memory; gather it before.",
        ),
        (
            changed("fsdp", "        if unit < last:\n            yield free(unit)\n", ""),
            "gather(2): there is room for 2, and units 0 and 1 are there.",
        ),
        (
            changed("fsdp", "yield reduce(unit + 1)", "yield reduce(unit)"),
            "reduce(2): backward(2) has to come first.",
        ),
        (changed("fsdp", "yield reduce(0)", "pass"), "The gradients of unit 0 are never reduced."),
        (
            changed("fsdp", "yield forward(unit)", "yield backward(unit)"),
            "backward(0): the next to compute is forward(0).",
        ),
        (
            changed("fsdp", "if unit > 0:", "if unit > 1:"),
            "backward(0): unit 0 is not in memory; gather it before.",
        ),
        ("def step(units):\n    yield gather(9)\n", "gather(9): there are only 0 to 3."),
    ],
    "pipeline": [
        (
            "def order(stage, stages, batches):\n    for m in range(batches):\n"
            "        yield forward(m)\n    for m in range(batches):\n        yield backward(m)\n",
            "Stage 0 holds micro-batches 0, 1, 2 and 3 when forward(4) comes: there is room for 4.",
        ),
        (
            changed("pipeline", "        yield backward(m)\n        if", "        if"),
            "Stage 0 holds micro-batches",
        ),
        (
            changed("pipeline", "if m + first < batches:", "if True:"),
            "It yields forward(8): there are only 0 to 7.",
        ),
        (
            changed("pipeline", "stages - stage ", "stage "),
            "Stage 0 does backward(0) before forward(0).",
        ),
        (
            "def order(stage, stages, batches):\n    both = range(batches)\n"
            "    for m in both if stage else reversed(both):\n"
            "        yield forward(m)\n        yield backward(m)\n",
            "Deadlock: stage 0 waits for backward(7) of stage 1, stage 1 waits for forward(0)",
        ),
        (changed("pipeline", "forward(m)", "forward(0)"), "Stage 0 does forward(0)"),
    ],
}
