"""Graders of the lab on FSDP: one unit by hand, uneven rows, the global norm, the peak."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import minidist
from course.graders.verdict import Wrong, ask_number, ask_pairs, grader
from course.sandbox.ranks import IN_ORDER, on_ranks
from minidist.comm.comm import Comm, Counted, Ours

__all__ = ["norm", "peak", "rows", "unit"]

RANKS = 3
TIMEOUT = 20.0  # seconds until ranks that wait for each other are ended
PART = 4  # weights of the unit that each rank keeps
CASES = 3  # of gradients: see `_parts`
HINTS = {
    "did not end": IN_ORDER,
    "disagree": IN_ORDER,
    "barrier": " (The barrier is this grader's, when your function has returned.)",
}


class _Seen(NamedTuple):
    """What one rank has seen of a learner's unit."""

    answer: object
    given: dict[str, Tensor]  # the weights that forward and backward were handed
    held: bool  # whether forward's were still in memory when backward began
    left: bool  # whether any were when it was all over
    calls: list[str]
    kept: bool  # whether the shard is as it was


class _Layer:
    """The loss (w * x).sum() ** 2 / 2, whose gradient x * (w * x).sum() needs the weights again."""

    def __init__(self, rank: int) -> None:
        self.x = torch.randn(
            RANKS * PART, generator=torch.Generator().manual_seed(rank), dtype=torch.float64
        )
        self.given: dict[str, Tensor] = {}
        self.storages: list[StorageWeakRef] = []
        self.held = False

    def forward(self, weights: Tensor) -> None:
        self._look("forward", weights)

    def backward(self, weights: Tensor) -> Tensor:
        self.held = self.in_memory()
        self._look("backward", weights)
        return self.gradient(weights)

    def gradient(self, weights: Tensor) -> Tensor:
        return self.x * (weights * self.x).sum()

    def in_memory(self) -> bool:
        """Whether weights that it was handed still take memory."""
        return any(map(_takes_memory, self.storages))

    def _look(self, when: str, weights: Tensor) -> None:
        right = isinstance(weights, Tensor) and weights.shape == (RANKS * PART,)
        if not right:
            found = list(weights.shape) if isinstance(weights, Tensor) else repr(weights)
            raise Wrong(
                f"{when} got {found}, expected all [{RANKS * PART}] weights of the unit: the "
                f"{PART} of each rank, in the order of ranks."
            )
        self.given[when] = weights.detach().clone()
        self.storages.append(StorageWeakRef(weights.untyped_storage()))  # type: ignore[no-untyped-call]


def _takes_memory(storage: StorageWeakRef) -> bool:
    if storage.expired():  # type: ignore[no-untyped-call]
        return False
    alive = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
    return alive is not None and alive.nbytes() > 0


Unit = Callable[[Tensor, Callable[[Tensor], None], Callable[[Tensor], Tensor], Comm], Tensor]


@grader
def unit(function: Unit) -> str:
    """Grade function(shard, forward, backward, comm): one unit's life on real ranks.

    It must return the shard of the averaged gradient. The judge has all weights and all inputs in
    one process.
    """
    seen = on_ranks(_live, RANKS, function, timeout=TIMEOUT, hints=HINTS)
    whole = torch.cat([_shard(rank) for rank in range(RANKS)])
    own = [_Layer(rank).gradient(whole) for rank in range(RANKS)]
    for rank, each in enumerate(seen):
        _check_life(rank, each, whole)
        _check_gradient(rank, each.answer, own)
        if "all_reduce" in each.calls:
            raise Wrong(
                "the numbers are right, by an all-reduce, of which you throw most away: that takes "
                "twice the bytes of comm.reduce_scatter(part, whole)."
            )
    return (
        f"on {RANKS} real ranks forward and backward had all {len(whole)} weights, each rank keeps "
        f"its {PART}, and gets the average of their gradients. In between nothing was whole. Your "
        f"unit made {len(seen[0].calls)} calls: {', '.join(seen[0].calls)}."
    )


def _shard(rank: int) -> Tensor:
    return torch.randn(
        PART, generator=torch.Generator().manual_seed(100 + rank), dtype=torch.float64
    )


def _live(function: Unit) -> _Seen:
    rank = dist.get_rank()
    shard, layer, comm = _shard(rank), _Layer(rank), Counted(Ours(algorithm="ring"))
    answer = function(shard, layer.forward, layer.backward, comm)
    minidist.barrier()  # or the last call's tensors are still that call's
    left, kept = layer.in_memory(), torch.equal(shard, _shard(rank))
    answer = answer.detach().clone() if isinstance(answer, Tensor) else answer
    return _Seen(answer, layer.given, layer.held, left, [c.name for c in comm.calls], kept)


def _check_life(rank: int, seen: _Seen, whole: Tensor) -> None:
    for when in ("forward", "backward"):
        if when not in seen.given:
            raise Wrong(f"on rank {rank} {when} was never called.")
        if not torch.equal(seen.given[when], whole):
            raise Wrong(
                f"on rank {rank} the weights that {when} got are not those of all ranks. "
                "comm.all_gather(whole, shard) fills whole, in the order of ranks."
            )
    if not seen.kept:
        raise Wrong(f"on rank {rank} the shard has been changed. Only the optimizer does that.")
    if seen.held:
        raise Wrong(
            f"on rank {rank} the whole weights of forward are still in memory when backward "
            "begins. Reshard: let go of them after forward, and gather them again."
        )
    if seen.left:
        raise Wrong(
            f"on rank {rank} whole weights are still in memory when all is over. Who holds them?"
        )


def _check_gradient(rank: int, answer: object, own: Sequence[Tensor]) -> None:
    mean = sum(own[1:], own[0]) / RANKS
    part = slice(rank * PART, (rank + 1) * PART)
    if not isinstance(answer, Tensor):
        raise Wrong(f"on rank {rank} you return {answer!r}, expected the shard of the gradient.")
    if answer.shape != mean[part].shape:
        raise Wrong(
            f"on rank {rank} you return shape {list(answer.shape)}, expected {[PART]}: the rank "
            "keeps its own part of the average."
        )
    if not torch.allclose(answer, mean[part], rtol=1e-9):
        raise Wrong(f"on rank {rank} the gradient {_what_is_off(rank, answer, own)}")


def _what_is_off(rank: int, answer: Tensor, own: Sequence[Tensor]) -> str:
    mean = sum(own[1:], own[0]) / RANKS
    parts, mine = torch.split(mean, PART), torch.split(own[rank], PART)[rank]
    known = [
        (RANKS * parts[rank], f"is the sum over {RANKS} ranks, expected the average: divide by "
                              "their number."),
        (mine, "is this rank's part of its own gradient. The other ranks' samples are missing."),
        (parts[rank] / RANKS, "is divided twice by the number of ranks."),
    ]  # fmt: skip
    for other, part in enumerate(parts):
        known.append((part, f"is that of rank {other}'s weights. Rank {rank} keeps part {rank}."))
    texts = (text for tensor, text in known if torch.allclose(answer, tensor))
    return next(texts, f"is off by up to {(answer - parts[rank]).abs().max().item():.1e}.")


@grader
def rows(function: Callable[[int, int], Sequence[tuple[int, int]]]) -> str:
    """Grade function(rows, ranks): which rows [start, end) each rank keeps, as FSDP2 cuts them.

    The judge is `torch.chunk`, by which FSDP2 cuts.
    """
    cases = [(8, 4), (5, 4), (9, 4), (10, 4), (3, 4), (1, 4), (6, 4), (7, 3), (13, 8), (5, 1)]
    for count, ranks in cases:
        chunks = [chunk.tolist() for chunk in torch.arange(count).chunk(ranks)]
        right = chunks + [[]] * (ranks - len(chunks))
        case = f"For {count} rows on {ranks} ranks "
        spans = ask_pairs(function, count, ranks, case=case, expected="(start, end) of each")
        if len(spans) != ranks:
            raise Wrong(
                f"{case}you return {len(spans)} spans. Each rank wants one; a rank without rows "
                "has (rows, rows)."
            )
        found = [list(range(start, end)) for start, end in spans]
        if found != right or any(end < start for start, end in spans):
            raise Wrong(f"{case}you return {spans}. {_why_rows(found, right, count)}")
    return (
        f"right for {len(cases)} cases, also where ranks get nothing. Every rank's part of the "
        "all-gather is as long as the first rank's; what is missing there is padding."
    )


def _why_rows(found: list[list[int]], right: list[list[int]], count: int) -> str:
    every = [row for part in found for row in part]
    sizes = [len(part) for part in right]
    if found == right:
        return "A span must not end before it begins: cut both at the number of rows."
    if any(row >= count for row in every):
        return f"There is no row {max(every)}: cut at {count}."
    if len(every) < count:
        return f"Row {min(set(range(count)) - set(every))} is nobody's: round up, not down."
    if every == list(range(count)) and max(map(len, found)) - min(map(len, found)) <= 1:
        return (
            f"That is as even as can be. FSDP2 makes all chunks ceil(rows / ranks) long and lets "
            f"the last ranks have less: {sizes} rows."
        )
    return f"Expected {sizes} rows, in order."


@grader
def norm(function: Callable[[list[Tensor | None], Comm], object]) -> str:
    """Grade function(gradients, comm): the 2-norm of the whole gradient, from every rank's parts.

    A part may be empty, or None where a parameter got no gradient.
    """
    answers = on_ranks(_norms, RANKS, function, timeout=TIMEOUT, hints=HINTS)
    for case in range(CASES):
        of_ranks = [_parts(rank, case) for rank in range(RANKS)]
        norms = [
            math.sqrt(sum(part.square().sum().item() for part in parts if part is not None))
            for parts in of_ranks
        ]
        for rank, of_cases in enumerate(answers):
            _check_norm(rank, of_cases[case], norms)
    return (
        "alike on all ranks and that of the whole gradient, also where ranks have empty parts or "
        "none. One number went over the wire."
    )


def _parts(rank: int, case: int) -> list[Tensor | None]:
    """Parts of gradients; in case 1 the last rank has empty ones, in case 2 it has none."""
    generator = torch.Generator().manual_seed(10 * case + rank)
    parts = [torch.randn(shape, generator=generator) for shape in ((3, 2), (5,))]
    if rank == RANKS - 1 and case:
        return [part[:0] if case == 1 else None for part in parts]
    return list(parts)


def _norms(function: Callable[[list[Tensor | None], Comm], object]) -> list[object]:
    """What this rank answers in each case."""
    rank, comm, answers = dist.get_rank(), Ours(algorithm="ring"), []
    for case in range(CASES):
        parts = _parts(rank, case)
        answer = function(parts, comm)
        if not all(map(_same, parts, _parts(rank, case))):
            raise Wrong("the gradients have been changed. The norm alone is asked for.")
        one = isinstance(answer, Tensor) and answer.numel() == 1
        answers.append(answer.item() if one else answer)  # type: ignore[attr-defined]
    return answers


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _check_norm(rank: int, answer: object, norms: list[float]) -> None:
    right = math.hypot(*norms)
    if not isinstance(answer, int | float):
        raise Wrong(f"on rank {rank} you return {answer!r}, expected a number.")
    hints = {
        right: "",
        right**2: "That is its square.",
        norms[rank]: "That is the norm of this rank's part alone.",
        sum(norms): "Norms do not add up: their squares do.",
        sum(norms) / len(norms): "That is the mean of the ranks' norms: squares add up.",
        right / math.sqrt(len(norms)): "Sum the squares over the ranks; do not average them.",
        math.sqrt(sum(norms)): "That is the root of a sum of norms: sum their squares.",
    }
    for value, hint in hints.items():
        if math.isclose(answer, value, rel_tol=1e-5):
            if not hint:
                return
            raise Wrong(f"on rank {rank} you return {answer:.4f}, expected {right:.4f}. {hint}")
    raise Wrong(f"on rank {rank} you return {answer:.4f}, expected {right:.4f}.")


@grader
def peak(function: Callable[[list[int], int, bool], float]) -> str:
    """Grade function(units, ranks, prefetch): the most weights that a rank holds during forward.

    `units` are numbers of weights, which `ranks` divides: first the root's own, whole until forward
    is over, then the blocks' in order. The judge walks through a forward pass and counts.
    """
    cases = [
        ([0, 100, 100, 100], 4),
        ([40, 100, 100, 100, 100], 4),
        ([40, 20, 120, 60, 20, 100], 2),
        ([60, 10, 20, 20, 80, 10], 10),
        ([400, 20, 40], 2),
        ([24, 800], 8),
        ([1200], 4),
    ]
    for units, ranks in cases:
        for prefetch in (False, True):
            answer = ask_number(function, list(units), ranks, prefetch)
            right = _walk(units, ranks, prefetch)
            if answer != right:
                ahead = "with" if prefetch else "without"
                raise Wrong(
                    f"for units of {units} weights on {ranks} ranks, {ahead} prefetch, you say "
                    f"{answer:g}; it is {right}.{_why_peak(answer, units, ranks, prefetch)}"
                )
    return (
        f"right for {len(cases)} models, with prefetch and without. More ranks shrink the first "
        "term alone: what is whole at a time does not depend on their number."
    )


def _walk(units: Sequence[int], ranks: int, prefetch: bool) -> int:
    """Go through the blocks of a forward pass; the root is whole all the time."""
    shards = sum(units) // ranks
    root, *blocks = units
    most = shards + root
    for number in range(len(blocks)):
        whole = blocks[number : number + 1 + prefetch]
        most = max(most, shards + root + sum(whole))
    return most


def _why_peak(answer: float, units: Sequence[int], ranks: int, prefetch: bool) -> str:
    right, (root, *blocks) = _walk(units, ranks, prefetch), units
    shards, largest = sum(units) // ranks, max(blocks, default=0)
    hints = [
        (right - shards, "the shards are held all the time, also of units that are whole"),
        (right - root, "the root's own weights are whole until forward is over"),
        (_walk(units, ranks, not prefetch), "with prefetch two units are whole at a time, "
                                            "without one"),
        (shards + root + sum(sorted(blocks)[-2:]), "the two largest are whole at a time only if "
                                                   "they follow each other"),
        (shards + root + 2 * largest, "the next unit is not as large as the largest"),
        (shards + sum(units), "not all units are whole at a time"),
        (sum(units), "that is the whole model"),
    ]  # fmt: skip
    fitting = [hint for value, hint in hints if answer == value != right]
    return f" Perhaps {fitting[0]}." if fitting else ""
