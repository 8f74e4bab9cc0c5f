"""Graders of the lab on memory: activations, peaks, checkpoints, and how many ranks it takes."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, product
from typing import Any

import torch

from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import draws, whole
from course.training.models import GPT
from minidist.memory.activations import saved
from minidist.memory.state import FP32, MIXED, DtypePolicy, share, state

GB = 10**9


@Exercise
def activations() -> Table:
    """Grade function(batch, time, width, heads): bytes that autograd keeps of one block of a GPT.

    In fp32, with the block's input and without its weights. The judge is autograd.
    """

    def kept(batch: int, time: int, width: int, heads: int) -> int:
        block = GPT(2, width, layers=1, heads=heads, context=time).blocks[0]
        return saved(partial(block, torch.ones(batch, time, width)), block.parameters())

    def off_by(more: Callable[[int, int, int], int]) -> Callable[..., int]:
        """A wrong answer: what is kept, and more(time, width, heads) numbers for each token."""
        return lambda batch, *block: kept(batch, *block) + 4 * batch * block[0] * more(*block)

    return numbers(
        within=0.4,
        cases=[(1, 8, 16, 8), (2, 8, 16, 2), (3, 17, 24, 4), (2, 5, 64, 1), (1, 31, 8, 8),
               (5, 3, 40, 5)],
        right=kept,
        told="For a batch of {}, {} tokens, width {} and {} heads",
        slips={
            "Those are numbers; each takes 4 bytes.": lambda *case: kept(*case) / 4,
            "A number takes 4 bytes here, not 2.": lambda *case: kept(*case) / 2,
            "That is one token's.":
                lambda batch, time, *block: kept(batch, time, *block) / batch / time,
            "The small ones are missing: those of both LayerNorms and of attention.":
                lambda batch, time, width, _: 4 * batch * time * 16 * width,
            "Attention also keeps a number for each token and head.":
                off_by(lambda time, width, heads: -heads),
            "There are two LayerNorms, and each keeps two numbers a token.": off_by(lambda *_: -2),
            "A LayerNorm also keeps two numbers for each token.": off_by(lambda *_: -4),
            "One tensor is missing: is the block's input there, and all inputs inside?":
                off_by(lambda time, width, heads: -width),
            "One tensor too many: a sum keeps nothing, a view is no new tensor.":
                off_by(lambda time, width, heads: width),
            "Queries, keys and values are views of one tensor: count them once.":
                off_by(lambda time, width, heads: 3 * width),
            "This attention never keeps its scores of all pairs.":
                off_by(lambda time, width, heads: heads * time),
        },
        otherwise=lambda answer, *case: (
            f"You are off by {(answer - kept(*case)) / (4 * math.prod(case[:3])):+.3g} tensors of "
            "the size of the input."
        ),
        solved="for {cases} blocks: autograd keeps the same, to the byte. Activations are "
        "proportional to batch and time: 16 numbers and a bit per token and feature, while the "
        "block's weights are 12 times the square of the width.",
    )  # fmt: skip


Lives = Sequence[tuple[float, float, int]]


@Exercise
def peak() -> Table:
    """Grade function(lives): the most bytes at any time, of tensors as (born, freed, bytes).

    What is freed at a time is gone before what is born then.
    """
    cases: list[list[tuple[int, int, int]]] = [
        [(0, 9, 5)],
        [(0, 3, 10), (3, 6, 10), (8, 9, 5)],
        [(0, 9, 4), (1, 8, 2), (2, 7, 2), (3, 6, 2), (3, 9, 1), (6, 9, 1), (7, 9, 1)],
        [(0, 2, 100), (1, 9, 30), (3, 5, 60), (4, 6, 20)],
        [(5, 9, 7), (0, 5, 6), (2, 3, 2), (3, 4, 3)],
        [(0, 3, 1), (1, 2, 5), (4, 9, 2), (6, 8, 3), (7, 8, 1)],
        [],
    ]
    draw = draws(18)
    for many in (5, 12, 20):
        births = [draw.randrange(9) for _ in range(many)]
        cases.append([(b, draw.randrange(b + 1, 11), draw.randrange(1, 50)) for b in births])

    def most(lives: Lives, longer: float = 0.0) -> int:
        """At any of ten moments; each may live longer."""
        return max(sum(n for a, b, n in lives if a <= at < b + longer) for at in range(10))

    return numbers(
        cases=[(lives,) for lives in cases],
        right=most,
        told="For the tensors {}",
        slips={
            "What is freed at a time is gone before the next is born.":
                lambda lives: most(lives, 0.5),
            "That is the largest tensor, not the most of all together.":
                lambda lives: max((n for *_, n in lives), default=0),
            "That is the sum of all, but they do not all live at once.":
                lambda lives: sum(n for *_, n in lives),
            "That is what lives at the end.":
                lambda lives: sum(n for _, end, n in lives if end == max(b for _, b, _ in lives)),
        },
        solved="for {cases} lists. What does not live at the same time does not add up: a step's "
        "peak is less than the sum of its parts.",
    )  # fmt: skip


@Exercise
def checkpointed() -> Table:
    """Grade function(layers, every, kept, passed): most bytes of activations with checkpoints.

    Each segment of `every` blocks is checkpointed, the last may be shorter. A block keeps `kept`
    bytes; of them `passed` are its input, which the block before it has returned.
    """
    chains = [(4, 1), (4, 4), (12, 1), (12, 3), (12, 4), (12, 12), (10, 4), (7, 3), (5, 9), (23, 5)]
    cases = product([*chains, (1, 1)], ((16, 1), (34, 2), (5, 5)))

    def held(layers: int, every: int, kept: int, passed: int, *, again: int = 0) -> int:
        """After forward, or in backward, when so many blocks of a segment are computed again."""
        return (-(-layers // every) - (again > 0)) * passed + again * kept

    return numbers(
        cases=[(*chain, *block) for chain, block in cases],
        right=_played,
        told="For {} blocks, a checkpoint every {}, {} bytes kept in a block and {} of them its "
        "input",
        slips={
            "That is without checkpoints.": lambda layers, _, kept, __: layers * kept,
            "That is after forward. Then each segment is computed once more.": held,
            "That is a segment; the inputs of all the others wait meanwhile.":
                lambda layers, every, kept, _: min(layers, every) * kept,
            "The segment's own input counts twice: as checkpoint, and in a block.":
                lambda *case: _played(*case) + case[-1],
            "While a segment is computed again, all its blocks keep theirs.":
                lambda *case: held(*case, again=1),
            "Before backward comes to a full segment, the shorter is freed.":
                lambda layers, every, *block: held(layers, every, *block, again=min(layers, every)),
            "There are fewer blocks than that in a segment.":
                lambda layers, every, *block: held(layers, every, *block, again=every),
        },
        solved="for chains of 1 to 23 blocks, even where they do not divide. Few checkpoints leave "
        "a long segment to compute again, and many leave many inputs: the least is in between.",
    )  # fmt: skip


def _played(layers: int, every: int, kept: int, passed: int) -> int:
    """The most bytes at any time: tensors are held by name, so what is shared is there once."""
    held = {f"input {i}": passed for i in range(0, layers, every)}  # after forward
    most = sum(held.values())
    for start in reversed(range(0, layers, every)):
        blocks = range(start, min(start + every, layers))
        for i in blocks:  # once more forward
            held |= {f"input {i}": passed, f"inside {i}": kept - passed}
            most = max(most, sum(held.values()))
        for i in blocks:
            del held[f"input {i}"], held[f"inside {i}"]
    return most


@Exercise
def fewest() -> Table:
    """Grade function(parameters, limit, beside, policy, optimizer): the fewest ranks that do.

    All of the state is cut among the ranks. `beside` bytes are needed on each rank whatever their
    number, for the unsharded unit and the activations. None if no number of ranks will do.
    """
    limits = ((24 * GB, 8 * GB), (80 * GB, 8 * GB), (24 * GB, 24 * GB), (200, 0), (24 * GB, 0))
    sizes = (7 * GB, 70 * GB, 12, 1_234_567_891)
    policies = ((FP32, "adam"), (MIXED, "adam"), (FP32, "sgd"))

    def needed(ranks: int, size: int, beside: int, policy: DtypePolicy, optimizer: str) -> int:
        return share(state(size, policy, optimizer), ranks, stage=3).total + beside

    def right(size: int, limit: int, beside: int, *how: Any) -> int | None:
        if limit <= beside:
            return None
        least = max(1, state(size, *how).total // (limit - beside))
        return next(n for n in count(least) if needed(n, size, beside, *how) <= limit)

    def in_room(ranks: Callable[..., int]) -> Callable[..., int | None]:
        """The answer of ranks(size, bytes that are left, *how); None where none are left."""
        return lambda size, limit, beside, *how: (
            ranks(size, limit - beside, *how) if limit > beside else None
        )

    return Table(
        cases=[(n, *limit, *how) for n, limit, how in product(sizes, limits, policies)],
        right=right,
        told=lambda size, limit, beside, policy, optimizer: (
            f"For {size:,} parameters ({policy.name}, {optimizer}), {limit:,} bytes a rank and "
            f"{beside:,} of them beside the state"
        ),
        read=lambda answer: None if answer is None else whole(answer),
        expected="a whole number of ranks from 1 on, or None",
        slips={
            "Round up.": in_room(lambda size, room, *how: max(1, state(size, *how).total // room)),
            "What is beside the state needs room too.":
                lambda size, limit, beside, *how: (
                    right(size, limit, 0, *how) if limit > beside else None
                ),
            "There is no room for any slice, however thin.":
                lambda size, limit, beside, *how: right(size, limit, beside, *how) or 0,
            "Only the weights were cut.":
                in_room(lambda size, room, policy, _: -(-size * policy.weights.itemsize // room)),
            "That is Adam's, and this optimizer keeps fewer moments.":
                lambda size, limit, beside, policy, _: right(size, limit, beside, policy, "adam"),
        },
        otherwise=lambda answer, size, limit, beside, *how: (
            "With enough ranks a slice of the state fits in what is left." if answer is None
            else "There is no room for any slice, however thin." if limit <= beside
            else "One rank less would do as well." if answer > right(size, limit, beside, *how)
            else f"Each would need {needed(max(answer, 1), size, beside, *how):,} bytes."
        ),
        solved=f"for {len(sizes)} models, {len(limits)} GPUs, fp32 and mixed precision, Adam and "
        "SGD: one rank less would not fit. The unsharded unit and the activations stay, however "
        "many ranks there are. They decide whether the model fits at all; the state only decides "
        "how many ranks it takes.",
    )  # fmt: skip
