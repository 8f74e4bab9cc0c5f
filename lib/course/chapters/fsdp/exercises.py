"""Graders of the lab on FSDP: one unit by hand, uneven rows, the global norm, the peak."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

import minidist
from course.ask.averages import averages, flat, off
from course.ask.ranks import REAL, Check, Cost, Storages, Traffic, beside, graded
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Range, Wrong, draws, list_of, number, pair, same_ranges
from course.project.held import of_the_process
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours


def _drawn(seed: int, count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _gradient(rank: int, weights: Tensor) -> Tensor:
    """Gradient of a rank's loss (w * x).sum() ** 2 / 2, whose backward needs the weights again."""
    x = _drawn(rank, len(weights))
    return x * (weights * x).sum()


LARGE = 2**17 - 100  # weights of a unit on each rank: what else a process takes is small then
NOT_ALL = (
    "are not those of all ranks. comm.all_gather(whole, shard) fills whole, in the order of ranks."
)


@graded(
    f"{REAL}, with units of three sizes, forward and backward had all weights, each rank received "
    "its part of the average gradient, and in between no full weights were in memory, nor a copy "
    "of them. The ranks sent what two all-gathers and a reduce-scatter send, half more than DDP's "
    "all-reduce.",
    lambda: [(4,), ((draw := draws(19)).randrange(5, 12),), (LARGE + draw.randrange(99),)],
    lambda part: f"with {part:,} weights per rank",
    instead="comm",
)
def unit(function: Callable[..., object], part: int) -> Iterator[Check]:
    """Grade function(shard, forward, backward, comm): one unit's life on real ranks.

    It must return the shard of the averaged gradient. Each rank keeps `part` weights of a unit.
    """
    comm = Counted(Ours(algorithm="ring"))
    rank, ranks = comm.rank, comm.ranks
    whole = torch.cat([_drawn(100 + each, part) for each in range(ranks)])
    shard, given, held = whole.chunk(ranks)[rank].clone(), {}, {}
    storages, levels, before = Storages(), dict[str, int](), of_the_process()

    def forward(weights: Tensor, when: str = "forward") -> None:
        held[when] = storages.held()
        levels[when] = of_the_process()  # arrays and lists included
        if not isinstance(weights, Tensor) or weights.shape != whole.shape:
            found = list(weights.shape) if isinstance(weights, Tensor) else repr(weights)
            raise Wrong(
                f"{when} got {found}, expected all {list(whole.shape)} weights of the unit: the "
                f"{part} of each rank, in the order of ranks."
            )
        given[when] = weights.detach().clone()
        storages.watch(weights)

    def backward(weights: Tensor) -> Tensor:
        forward(weights, "backward")
        return _gradient(rank, weights)

    with minidist.record() as log:
        answer: Any = function(shard, forward, backward, comm)
    minidist.barrier()  # who has made fewer calls meets the others here, and is told
    left = storages.held()
    for when in ("forward", "backward"):
        yield when not in given and f"{when} was never called."
        yield off(f"the weights that {when} got", given[when], whole, otherwise=NOT_ALL)
    changed = not shard.equal(whole.chunk(ranks)[rank])
    yield changed and "the shard has been changed. Only the optimizer does that."
    yield held["backward"] > 0 and (
        "the full weights of forward are still in memory when backward begins. Reshard: free "
        "them after forward, and gather them again."
    )
    yield left > 0 and "full weights are still in memory when all is over. What holds them?"
    yield part >= LARGE and copies(levels["backward"] - before - 2 * whole.nbytes, whole)
    yield from _compared(answer, torch.stack([_gradient(r, whole) for r in range(ranks)]), rank)
    yield Cost(
        Traffic.of(comm), 3 * (ranks - 1) * whole.nbytes, 3 * (ranks - 1), "the gradient is right",
        advice="Two gathers of the weights, and of the gradients no more than each rank's own part "
        "of the sum, which is what a reduce-scatter leaves.",
        too_little="Gather before forward and again before backward, by comm's calls alone.",
    )  # fmt: skip
    yield beside(log)


def copies(kept: int, whole: Tensor) -> str:
    """A sentence on bytes beside its weights and our copy that backward begins with; or ""."""
    if 2 * kept <= whole.nbytes:
        return ""
    return (
        f"backward begins with {kept:,} bytes more than its weights, of {whole.nbytes:,}. Keep no "
        "copy from forward on: gather them again."
    )


def _compared(answer: Any, gradients: Tensor, rank: int) -> Iterator[Check]:
    """Compare a rank's answer with its part of the mean of all ranks' gradients."""
    ranks = len(gradients)
    parts, mine = gradients.mean(0).chunk(ranks), gradients[rank].chunk(ranks)[rank]
    yield not isinstance(answer, Tensor) and (
        f"you return {answer!r:.80}, expected a part of the gradient."
    )
    yield off("the gradient", answer, parts[rank], averages(answer, parts[rank], mine, ranks) | {
        f"is that of rank {other}'s weights. Rank {rank} keeps part {rank}.": of_other
        for other, of_other in enumerate(parts)
    })  # fmt: skip


@Exercise
def rows() -> Table:
    """Grade function(rows, ranks): which rows [start, end) each rank keeps, as FSDP2 cuts them."""
    cases = [(8, 4), (5, 4), (9, 4), (10, 4), (3, 4), (1, 4), (6, 4), (7, 3), (13, 8), (5, 1)]
    cases += [(count, ranks) for count in (2, 17, 29, 64) for ranks in (2, 5, 6, 11)]
    draw = draws(92)
    cases += [(draw.randrange(1, 200), draw.randrange(2, 30)) for _ in range(9)]

    def spans(sizes: list[int]) -> list[Range]:
        """The ranges of ranks with so many rows each."""
        return [*pairwise(accumulate(sizes, initial=0))]

    def right(count: int, ranks: int) -> list[Range]:
        sizes = [len(chunk) for chunk in torch.arange(count).chunk(ranks)]
        return spans(sizes + [0] * (ranks - len(sizes)))

    def full(count: int, ranks: int) -> list[Range]:
        """As if each rank had as many rows as the first."""
        return spans([-(-count // ranks)] * ranks)

    def same(found: list[Range], wanted: list[Range]) -> bool:
        return same_ranges(found, wanted) and all(start <= end for start, end in found)

    return Table(
        cases=cases,
        right=right,
        told="For {} rows on {} ranks",
        read=list_of(pair),
        expected="(start, end) of each",
        same=same,
        slips={
            "That is as even as can be. FSDP2 makes all chunks ceil(rows / ranks) long and gives "
            "the last ranks fewer.":
                lambda count, ranks: (
                    spans([len(part) for part in torch.arange(count).tensor_split(ranks)])
                ),
            "Some rows are on no rank: round up, not down.":
                lambda count, ranks: spans([count // ranks] * ranks),
            "There are no such rows: cut at their number.": full,
            "A span must not end before it begins: cut both at the number of rows.":
                lambda count, ranks: [
                    (start, min(end, count)) for start, end in full(count, ranks)
                ],
            "Return a span per rank; a rank without rows has (rows, rows).":
                lambda count, ranks: [(a, b) for a, b in right(count, ranks) if a < b],
            "The longer parts come first.":
                lambda count, ranks: spans([b - a for a, b in right(count, ranks)][::-1]),
        },
        solved="for all {cases} cases on 1 to 29 ranks, even where ranks receive nothing. Every "
        "rank's part of the all-gather is as long as the first rank's; the rest is padding.",
    )  # fmt: skip


PARTS = (  # where the gradients of each case are
    "with parts on all ranks",
    "with empty parts on the last rank",
    "with None for both gradients on the last rank",
    "with None for all gradients",
)


def _parts(rank: int, ranks: int, case: int) -> list[Tensor | None]:
    """Parts of gradients; empty on the last rank in case 1, none there in 2, nowhere in 3."""
    generator = torch.Generator().manual_seed(10 * case + rank)
    parts = [torch.randn(shape, generator=generator) for shape in ((3, 2), (5 + case,))]
    if case == 3 or (case == 2 and rank == ranks - 1):
        return [None for _ in parts]
    return [part[:0] if case == 1 and rank == ranks - 1 else part for part in parts]


@graded(
    f"{REAL} the norm is that of the full gradient, even where ranks have empty parts or none, and "
    "each time one number was all-reduced, once.",
    lambda: [(case,) for case in range(len(PARTS))],
    lambda case: PARTS[case],
    instead="comm",
)
def norm(function: Callable[..., object], case: int) -> Iterator[Check]:
    """Grade function(gradients, comm): the 2-norm of the full gradient, from every rank's parts.

    A part may be empty, or None where a parameter got no gradient.
    """
    comm = Counted(Ours(algorithm="ring"))
    rank, ranks = comm.rank, comm.ranks
    of_ranks = [flat(_parts(each, ranks, case)) for each in range(ranks)]
    with minidist.record() as log:
        answer = function(parts := _parts(rank, ranks, case), comm)
    if not flat(parts).equal(of_ranks[rank]):
        raise Wrong(
            "the gradients have been changed. Return their norm, and leave them as they are."
        )
    if isinstance(answer, Tensor) and answer.numel() == 1:
        answer = answer.item()
    yield _why_norm(answer, rank, [part.norm().item() for part in of_ranks])
    calls, numbers = len(comm.calls), 2 * (ranks - 1)
    yield calls > 1 and f"the norm is right, but it takes {calls} calls of comm; one is enough."
    size = 8 if comm.calls and comm.calls[0].nbytes == 8 else 4  # float64 is right as well
    yield Cost(
        Traffic.of(comm), size * numbers, numbers, "the norm is right", shared=False,
        advice="One number from each rank is enough, in one all-reduce.",
        too_little="Make comm's calls, and no others.",
    )  # fmt: skip
    yield beside(log)


def _why_norm(answer: object, rank: int, norms: list[float]) -> str:
    right = math.hypot(*norms)
    try:
        found = torch.tensor(float(number(answer)))
    except TypeError:
        return f"you return {answer!r:.80}, expected a number."
    slips = {
        "That is its square.": right**2,
        "That is the norm of this rank's part alone.": norms[rank],
        "Norms do not add up: their squares do.": sum(norms),
        "That is the mean of the ranks' norms: squares add up.": sum(norms) / len(norms),
        "Sum the squares over the ranks; do not average them.": right / math.sqrt(len(norms)),
        "That is the root of a sum of norms: sum their squares.": math.sqrt(sum(norms)),
    }
    tensors = {text: torch.tensor(slip) for text, slip in slips.items()}
    said = f"you return {found:.4f}, expected {right:.4f}."
    return off(said, found, torch.tensor(right), tensors, "").rstrip()


@Exercise
def peak() -> Table:
    """Grade function(units, ranks, prefetch): the most weights that a rank holds during forward.

    `units` are numbers of weights, which `ranks` divides: first the root's own, gathered until
    forward is over, then the blocks' in order. The judge walks through a forward pass and counts.
    """
    models = [([0, 100, 100, 100], 4), ([40, 100, 100, 100, 100], 4), ([1200], 4), ([24, 800], 8)]
    models += [([40, 20, 120, 60, 20, 100], 2), ([60, 10, 20, 20, 80, 10], 10), ([400, 20, 40], 2)]
    draw = draws(20)
    for ranks in (1, 2, 3, 6, 7, 16):
        models += [([ranks * draw.randrange(9) for _ in range(blocks)], ranks) for blocks in (3, 9)]

    def walk(units: Sequence[int], ranks: int, prefetch: bool) -> int:
        """Go through the blocks of a forward pass; the root is gathered all the time."""
        root, *blocks = units
        most = 0
        for place in range(len(blocks)):
            gathered = blocks[place : place + 1 + prefetch]
            most = max(most, sum(gathered))
        return sum(units) // ranks + root + most

    def guess(units: Sequence[int], ranks: int, blocks: int) -> int:
        """With so many weights of blocks gathered."""
        return sum(units) // ranks + units[0] + blocks

    return numbers(
        "weights",
        cases=[(*model, prefetch) for model in models for prefetch in (False, True)],
        right=walk,
        told="For units of {} weights on {} ranks with prefetch={}",
        slips={
            "The shards are held all the time, even those of gathered units.":
                lambda units, ranks, prefetch: walk(units, ranks, prefetch) - sum(units) // ranks,
            "The root's own weights stay gathered until forward is over.":
                lambda units, ranks, prefetch: walk(units, ranks, prefetch) - units[0],
            "With prefetch two units are gathered, without it one.":
                lambda units, ranks, prefetch: walk(units, ranks, not prefetch),
            "The two largest need not follow each other.":
                lambda units, ranks, prefetch: (
                    guess(units, ranks, sum(sorted(units[1:], reverse=True)[: 1 + prefetch]))
                ),
            "The next unit is not as large as the largest.":
                lambda units, ranks, prefetch: (
                    guess(units, ranks, (1 + prefetch) * max(units[1:], default=0))
                ),
            "Not all units are gathered at a time.":
                lambda units, ranks, _: sum(units) // ranks + sum(units),
            "That is the full model.": lambda units, *_: sum(units),
        },
        solved=f"for all {len(models)} models on 1 to 16 ranks, with and without prefetch. More "
        "ranks only shrink the shards; what is gathered at a time does not depend on their number.",
    )  # fmt: skip
