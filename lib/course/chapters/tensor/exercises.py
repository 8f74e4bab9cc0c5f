"""Graders of the lab on tensor parallelism: two autograd functions, and seeds."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

import minidist
from course.ask.averages import off
from course.ask.ranks import REAL, Check, Cost, Traffic, beside, graded
from course.ask.table import Exercise, Table
from course.ask.verdict import Wrong, draws, list_of, whole
from from_scratch.tensor import shard
from minidist.collectives.tensor import barrier
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WIDTH = 6


@graded(
    f"{REAL}, with two numbers of tokens, output and gradients are those of one "
    "process. A rank takes part in one all-reduce in forward and one in backward. Each of your "
    "functions is the other one's transpose: one sums in forward, the other in backward.",
    lambda: [(4,), (draws(61).randrange(100, 200),)],
    lambda tokens: f"with {tokens} tokens",
    instead="comm",
)
def split(function: Callable[..., Any], tokens: int) -> Iterator[Check]:
    """Grade function(comm), which returns copy and reduce, the two ends of half a layer."""
    comm = Counted(Ours(algorithm="ring"))
    rank, ranks = comm.rank, comm.ranks
    shapes = (WIDTH, 2 * ranks), (2 * ranks, WIDTH), (tokens, WIDTH)
    a, b, x = (_drawn(seed, *shape).requires_grad_() for seed, shape in enumerate(shapes, 1))
    own_a, own_b = shard(a.detach(), 1, comm), shard(b.detach(), 0, comm)
    own_x, direction = x.detach().clone().requires_grad_(), _drawn(4, tokens, WIDTH)
    with minidist.record() as log:
        copy, reduce = _pair(function(comm))
        summand = (_looked_at("copy", copy(own_x), own_x) @ own_a).relu() @ own_b
        before = summand.detach().clone()
        output = _looked_at("reduce", reduce(summand), summand)
        kept = {"copy": own_x.equal(x), "reduce": summand.equal(before)}
        torch.autograd.backward(own_x + output, direction)
    barrier()  # who has made fewer calls meets the others here, and is told
    right = (x @ a).relu() @ b
    dx, da, db = torch.autograd.grad(x + right, (x, a, b), direction)
    yield off("the output", output, right, {
        "is this rank's summand alone: reduce must add up all ranks' in forward.": before,
        f"is {ranks} times too large: all ranks have the same input, so copy sends nothing in "
        "forward.": ranks * right,
        "is the mean of the ranks' summands; the output is their sum.": right / ranks,
    }, "is off by up to {off:.1e}: it is the sum of all summands.")  # fmt: skip
    yield _off_part("columns of up", own_a.grad, da.chunk(ranks, 1)[rank], ranks)
    yield _off_part("rows of down", own_b.grad, db.chunk(ranks)[rank], ranks)
    yield off("the gradient of the input", own_x.grad, dx, {
        "lacks what comes through the layer. Return a gradient from copy's backward.": direction,
        "holds the mean of what the ranks found; the ranks' parts add up.":
            direction + (dx - direction) / ranks,
    }, "is not that of one process. Each rank has the part that came through its own hidden "
    "units; in backward copy must add up all ranks'.")  # fmt: skip
    for name, same in kept.items():
        changes = f"{name} changes the tensor that it is given. Sum a clone."
        yield not same and f"the results are right, but {changes}"
    yield Cost(
        Traffic.of(comm), 4 * (ranks - 1) * x.nbytes, 4 * (ranks - 1), "all gradients are right",
        advice="One all-reduce in forward and one in backward are enough.",
        too_little="Call comm's collectives.",
    )  # fmt: skip
    yield beside(log)


def _pair(ends: Any) -> Any:
    if not isinstance(ends, tuple | list) or len(ends) != 2 or not all(map(callable, ends)):
        raise Wrong(
            f"you return {ends!r:.80}; expected two functions of a tensor, copy and reduce."
        )
    return ends


def _off_part(name: str, found: Tensor | None, right: Tensor, ranks: int) -> str:
    return off(f"the output is right, but the gradient of its {name}", found, right, {
        "is missing. Return one from reduce's backward.": None,
        f"is {ranks} times too large. The gradient that reaches reduce is the same on all ranks: "
        "hand it on as it is.": ranks * right,
        "was divided. The derivative of a sum by a summand is 1.": right / ranks,
    })  # fmt: skip


def _looked_at(name: str, found: Any, given: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != given.shape:
        shown = list(found.shape) if isinstance(found, Tensor) else f"{found!r:.60}"
        raise Wrong(f"{name} returns {shown}, expected a tensor of shape {list(given.shape)}.")
    if not found.requires_grad:
        raise Wrong(f"what {name} returns has no graph: it must be an autograd function's `apply`.")
    return found


HAVE, PARTS = "a weight that all ranks have", "the shards of a weight"
BETWEEN, INSIDE = "dropout between halves", "dropout inside a half"
TOKENS = "dropout between halves, split by tokens"
Seeds = Callable[[str, int, int], Any]


def _by(data: bool, tensor: bool) -> Callable[[int, int], list[int]]:
    """Seeds that differ by data-parallel rank, by tensor-parallel rank, by both or by neither."""

    def of(groups: int, size: int) -> list[int]:
        return [d * data * size + t * tensor for d, t in product(range(groups), range(size))]

    return of


BY = {
    HAVE: _by(False, False),
    PARTS: _by(False, True),
    BETWEEN: _by(True, False),
    INSIDE: _by(True, True),
    TOKENS: _by(True, True),
}


@Exercise
def seeds() -> Table:
    """Grade function(use, groups, size): each rank's seed, on `groups` tensor groups of `size`."""

    def same(found: list[int], wanted: list[int]) -> bool:
        """True if the same ranks have equal seeds."""
        alike = len(set(zip(found, wanted, strict=False)))
        return len(found) == len(wanted) and alike == len(set(found)) == len(set(wanted))

    def but(*uses: str, data: bool, tensor: bool) -> Seeds:
        """Right, except in these uses."""
        return lambda use, *grid: (_by(data, tensor) if use in uses else BY[use])(*grid)

    return Table(
        cases=[(use, *grid) for grid in [(2, 4), (4, 2), (1, 3), (3, 1), (2, 2)] for use in BY],
        right=lambda use, groups, size: BY[use](groups, size),
        told="For {}, on {} tensor groups of {} ranks,",
        read=list_of(whole),
        expected="a list with a seed for each rank",
        same=same,
        slips={
            "With one seed for all ranks, the shards of a weight are copies of each other, and all "
            "mask the same units. SmolLM3 was restarted for that after a trillion tokens.":
                lambda _, groups, size: groups * size * [7],
            "With a seed for each rank, not even the weights that all ranks have are alike.":
                lambda _, groups, size: list(range(groups * size)),
            "The shards of a weight are its parts: drawn alike, they are one part, N times.":
                but(PARTS, data=False, tensor=False),
            "Tensor groups are replicas of each other: rank t has the same shard in each of them.":
                but(PARTS, data=True, tensor=True),
            "Between halves all ranks of a tensor group have the same activations, and must mask "
            "the same ones.": but(BETWEEN, data=True, tensor=True),
            "Each tensor group has other samples, so its masks should be others, too.":
                but(BETWEEN, data=False, tensor=False),
            "Inside a half each rank has hidden units of its own, and samples of its group.":
                but(INSIDE, data=True, tensor=False),
            "Split by tokens, each rank has activations of its own even between halves.":
                but(TOKENS, data=True, tensor=False),
        },
        otherwise=lambda found, use, groups, size: (
            "What counts is which ranks have equal seeds: those that must draw the same."
            if len(found) == groups * size
            else f"Expected {groups * size} seeds, one for each rank, group by group."
        ),
        solved="for all {cases} cases. Equal seeds where ranks hold the same thing, different ones "
        "where they hold different parts.",
    )  # fmt: skip
