"""Graders of the lab on memory: activations, peaks, checkpoints, and how many ranks it takes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random

import torch

from course.training.models import GPT
from course.verdict import Wrong, ask_as, check_numbers, formula, hint, whole
from minidist.memory.activations import saved
from minidist.memory.state import FP32, MIXED, DtypePolicy, StateBytes, share, state

__all__ = ["activations", "checkpointed", "fewest", "peak"]

GB = 10**9


@formula
def activations(function: Callable[[int, int, int, int], float]) -> str:
    """Grade function(batch, time, width, heads): bytes that autograd keeps of one block of a GPT.

    In fp32, with the block's input and without its weights. The judge is autograd.
    """
    cases = [(1, 8, 16, 8), (2, 8, 16, 2), (3, 17, 24, 4)]
    cases += [(2, 5, 64, 1), (1, 31, 8, 8), (5, 3, 40, 5)]
    told = "For a batch of {}, {} tokens, width {} and {} heads"
    check_numbers(function, cases, _kept, told.format, _why_kept)
    return (
        f"for {len(cases)} blocks: autograd keeps the same, to the byte. Activations are "
        "proportional to batch and time: 16 numbers and a bit per token and feature, while the "
        "block's weights are 12 times the square of the width."
    )


def _kept(batch: int, time: int, width: int, heads: int) -> int:
    block = GPT(2, width, layers=1, heads=heads, context=time).blocks[0]
    return saved(partial(block, torch.ones(batch, time, width)), block.parameters())


def _why_kept(answer: float, batch: int, time: int, width: int, heads: int) -> str:
    right, tokens = _kept(batch, time, width, heads), batch * time
    one = 4 * tokens * width  # a tensor of the size of the block's input
    hints: list[tuple[float, str]] = [
        (right / 4, "Those are numbers; each takes 4 bytes."),
        (right / 2, "A number takes 4 bytes here, not 2."),
        (right / tokens, "That is one token's."),
        (16 * one, "The small ones are missing: those of both LayerNorms and of attention."),
        (right - 4 * tokens * heads, "Attention also keeps a number for each token and head."),
        (right - 8 * tokens, "There are two LayerNorms, and each keeps two numbers a token."),
        (right - 16 * tokens, "A LayerNorm also keeps two numbers for each token."),
        (right - one, "One tensor is missing: is the block's input there, and all inputs inside?"),
        (right + one, "One tensor too many: a sum keeps nothing, a view is no new tensor."),
        (right + 3 * one, "Queries, keys and values are views of one tensor: count them once."),
        (right + 4 * tokens * heads * time, "This attention never keeps its scores of all pairs."),
    ]
    off = f" You are off by {(answer - right) / one:+.3g} tensors of the size of the input."
    return hint(answer, hints, within=0.4) or off


Lives = Sequence[tuple[float, float, int]]


@formula
def peak(function: Callable[[Lives], float]) -> str:
    """Grade function(lives): the most bytes at any time, of tensors as (born, freed, bytes).

    What is freed at a time is gone before what is born then. The judge looks at every moment.
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
    draw = Random(18)
    for many in (5, 12, 20):
        births = [draw.randrange(9) for _ in range(many)]
        cases.append([(b, draw.randrange(b + 1, 11), draw.randrange(1, 50)) for b in births])
    told = "For the tensors {}".format
    check_numbers(function, [(lives,) for lives in cases], _most, told, _why_peak)
    return (
        f"for {len(cases)} lists. What does not live at the same time does not add up: a step's "
        "peak is less than the sum of its parts."
    )


def _most(lives: Lives, longer: float = 0.0) -> int:
    """At any of ten moments; each may live longer."""
    return max(sum(n for a, b, n in lives if a <= at < b + longer) for at in range(10))


def _why_peak(answer: float, lives: Lives) -> str:
    sizes = [nbytes for *_, nbytes in lives]
    hints = [
        (_most(lives, 0.5), "What is freed at a time is gone before the next is born."),
        (max(sizes, default=0), "That is the largest tensor, not the most of all together."),
        (sum(sizes), "That is the sum of all, but they do not all live at once."),
    ]
    return hint(answer, hints)


@formula
def checkpointed(function: Callable[[int, int, int, int], float]) -> str:
    """Grade function(layers, every, kept, passed): most bytes of activations with checkpoints.

    Each segment of `every` blocks is checkpointed, the last may be shorter. A block keeps `kept`
    bytes; of them `passed` are its input, which the block before it has returned. The judge plays
    forward and backward, tensor by tensor.
    """
    chains = [(4, 1), (4, 4), (12, 1), (12, 3), (12, 4), (12, 12), (10, 4), (7, 3), (5, 9), (23, 5)]
    cases = product([*chains, (1, 1)], ((16, 1), (34, 2), (5, 5)))
    told = "For {} blocks, a checkpoint every {}, {} bytes kept in a block and {} of them its input"
    flat = [(*chain, *block) for chain, block in cases]
    check_numbers(function, flat, _played, told.format, _why_checkpointed)
    return (
        "for chains of 1 to 23 blocks, even where they do not divide. Few checkpoints leave a long "
        "segment to compute again, and many leave many inputs: the least is in between."
    )


def _played(layers: int, every: int, kept: int, passed: int) -> int:
    """The most bytes at any time: tensors are held by name, so what is shared is there once."""
    sizes = {f"input {i}": passed for i in range(layers)}
    sizes |= {f"inside {i}": kept - passed for i in range(layers)}
    held = {f"input {i}" for i in range(0, layers, every)}  # after forward
    most = sum(sizes[name] for name in held)
    for start in reversed(range(0, layers, every)):
        blocks = range(start, min(start + every, layers))
        for i in blocks:  # once more forward
            held |= {f"input {i}", f"inside {i}"}
            most = max(most, sum(sizes[name] for name in held))
        held -= {f"{part} {i}" for i in blocks for part in ("input", "inside")}
    return most


def _why_checkpointed(answer: float, layers: int, every: int, kept: int, passed: int) -> str:
    segments, longest = -(-layers // every), min(layers, every)
    after, again = segments * passed, longest * kept
    hints: list[tuple[float, str]] = [
        (layers * kept, "That is without checkpoints."),
        (after, "That is after forward. Then each segment is computed once more."),
        (again, "That is a segment; the inputs of all the others wait meanwhile."),
        (after + again, "The segment's own input counts twice: as checkpoint, and in a block."),
        (after + kept - passed, "While a segment is computed again, all its blocks keep theirs."),
        (after + again - passed, "Before backward comes to a full segment, the shorter is freed."),
        (after - passed + every * kept, "There are fewer blocks than that in a segment."),
    ]
    return hint(answer, hints)


@formula
def fewest(function: Callable[[int, int, int, DtypePolicy, str], int]) -> str:
    """Grade function(parameters, limit, beside, policy, optimizer): the fewest ranks that do.

    All of the state is cut among the ranks. `beside` bytes are needed on each rank whatever their
    number, for the unsharded unit and the activations. None if no number of ranks will do.
    """
    limits = ((24 * GB, 8 * GB), (80 * GB, 8 * GB), (24 * GB, 24 * GB), (200, 0), (24 * GB, 0))
    sizes = (7 * GB, 70 * GB, 12, 1_234_567_891)
    policies = ((FP32, "adam"), (MIXED, "adam"), (FP32, "sgd"))
    for size, (limit, beside), (policy, optimizer) in product(sizes, limits, policies):
        expected = "a whole number of ranks from 1 on, or None"
        given = size, limit, beside, policy, optimizer
        answer = ask_as(lambda x: None if x is None else whole(x), expected, function, *given)
        case = (
            f"For {size:,} parameters ({policy.name}, {optimizer}), {limit:,} bytes a rank and "
            f"{beside:,} of them beside the state you say {answer!r}"
        )
        if answer is None:
            if limit > beside:
                raise Wrong(f"{case}. With enough ranks a slice of the state fits in what is left.")
        elif answer < 1:
            raise Wrong(f"{case}; expected {expected}.")
        elif limit <= beside:
            raise Wrong(f"{case}. There is no room for any slice, however thin: expected None.")
        else:
            _check_fewest(answer, limit, beside, state(size, policy, optimizer), case)
    return (
        f"for {len(sizes)} models, {len(limits)} GPUs, fp32 and mixed precision, Adam and SGD: one "
        "rank less would not fit. The unsharded unit and the activations stay, however many ranks "
        "there are. They decide whether the model fits at all; the state only decides how many "
        "ranks it takes."
    )


def _check_fewest(answer: int, limit: int, beside: int, whole: StateBytes, case: str) -> None:
    fewer, needed, more = (
        share(whole, max(ranks, 1), stage=3).total + beside
        for ranks in (answer - 1, answer, answer + 1)
    )
    if needed > limit:
        why = " Round up." if more <= limit else ""
        if whole.total / answer <= limit:
            why = why or " What is beside the state needs room too."
        raise Wrong(f"{case}. Each would need {needed:,} bytes.{why}")
    if answer > 1 and fewer <= limit:
        raise Wrong(f"{case}. One rank less would do as well.")
