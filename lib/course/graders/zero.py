"""Graders of the lab on ZeRO: who owns what, the step by hand, freeing gradients, the wire."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

import minidist
from course.graders.averages import backward, near, why_not
from course.graders.ddp import gradients
from course.graders.table import Exercise, Table, numbers
from course.sandbox.ranks import REAL, Traffic, check_traffic, on_worlds, takes_memory
from course.verdict import Grader, Range, Wrong, draws, list_of, pair, same_ranges
from minidist.parallel.sharding.layouts import Flat

__all__ = ["by_hand", "during_backward", "slices", "wire"]

STEPS, RATE = 3, 0.1


# ---- who owns what ----


@Exercise
def slices() -> Table:
    """Grade function(sizes, ranks, rank): of each parameter the elements [start, end) of a rank.

    The parameters lie end to end, padded to a multiple of `ranks`. The judge is
    `minidist.parallel.sharding.layouts`.
    """
    models = [([5, 2], 4), ([4, 4], 2), ([10], 3), ([3, 1, 4, 1, 5, 9], 4), ([2, 1], 5), ([7], 1)]
    draw = draws(16)
    models += [([draw.randrange(1, 40) for _ in range(ranks)], ranks) for ranks in (3, 6, 11)]

    def owned(sizes: list[int], ranks: int, rank: int) -> list[Range]:
        return Flat([*map(torch.Size, zip(sizes))], ranks, rank).ranges()

    def rounded_down(sizes: list[int], ranks: int, rank: int) -> list[Range]:
        each = sum(sizes) // ranks
        places = zip(accumulate(sizes, initial=-rank * each), sizes, strict=False)
        return [(min(max(-at, 0), size), min(max(each - at, 0), size)) for at, size in places]

    return Table(
        cases=[(*model, rank) for model in models for rank in range(model[1])],
        right=owned,
        told="For parameters of {} elements on {} ranks, rank {}:",
        read=list_of(pair),
        expected="a list of (start, end)",
        same=same_ranges,
        slips={
            "Rank r owns the r-th slice, counted from the front.":
                lambda sizes, ranks, rank: owned(sizes, ranks, ranks - 1 - rank),
            "Ranks count from 0: rank r owns the r-th slice.":
                lambda sizes, ranks, rank: owned(sizes, ranks, rank + 1),
            "Round up: all slices are equally long, and the last one may hold padding.":
                rounded_down,
            "Count within the parameter: its first element is 0, and its end is its size.":
                lambda sizes, ranks, rank: [
                    (at + start, at + end) for at, (start, end) in
                    zip(accumulate(sizes, initial=0), owned(sizes, ranks, rank), strict=False)
                ],
            "It is the whole model that is cut, not each parameter.":
                lambda sizes, ranks, rank: [owned([size], ranks, rank)[0] for size in sizes],
        },
        otherwise=lambda found, sizes, *_: (
            "A slice has ceil(sum(sizes) / ranks) elements of the parameters laid end to end."
            if len(found) == len(sizes)
            else f"Expected a range for each of the {len(sizes)} parameters, empty or not."
        ),
        solved=f"for every rank of {len(models)} models, on 1 to 11 ranks. A boundary may fall "
        "inside a parameter, and a rank may own nothing but padding: equal slices cost some "
        "padding.",
    )  # fmt: skip


# ---- ZeRO-1 by hand ----


class _Seen(NamedTuple):  # by one rank, of a learner's ZeRO-1 of one model
    weights: list[Tensor]  # flat: at the start, and after each step
    sent: list[Traffic]  # in each step
    kept: int  # elements that its optimizers keep


@Grader
def by_hand(function: Callable[[list[Parameter], Callable[..., Optimizer]], object]) -> str:
    """Grade function(parameters, make), which returns step(): ZeRO-1 of local gradients.

    `make(tensors)` builds SGD with momentum. On real ranks with different data; the judge is one
    process on the whole batch.
    """
    work = partial(_train, function)
    for widths, seen in on_worlds(work, MODELS, instead="minidist's collectives"):
        _check_weights(widths, seen)
    return (
        f"{REAL}, with {len(MODELS)} models, the weights are those of one process with the whole "
        f"batch in all {STEPS} steps. Each rank keeps the moments of its slice alone, and sends in "
        "two calls what one all-reduce sends."
    )


Widths = tuple[int, ...]
# 59 elements; and 10, of which rank 4 of 5 has 2.
MODELS: tuple[Widths, ...] = ((4, 5, 4, 2), (1, 3, 1))


def _model(widths: Widths, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    linears = [nn.Linear(*shape, bias=bias) for shape in pairwise(widths)]
    return nn.Sequential(*(part for linear in linears for part in (linear, nn.Tanh())))


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def _train(function: Callable[..., Any], widths: Widths) -> _Seen:
    model, made = _model(widths), list[Optimizer]()

    def make(tensors: Iterable[Tensor]) -> Optimizer:
        made.append(SGD(list(tensors), lr=RATE, momentum=0.9))
        return made[-1]

    step = function(list(model.parameters()), make)
    if not callable(step):
        raise Wrong(f"you return a {type(step).__name__}, expected a function that takes a step.")
    weights, sent = [_flat(model)], []
    for number in range(STEPS):
        model.zero_grad()
        backward(model, number, dist.get_rank(), dist.get_world_size())
        with minidist.record() as log:
            step()
        sent.append(Traffic.of(log))
        weights.append(_flat(model))
    states = [kept for optimizer in made for kept in optimizer.state.values()]
    tensors = [t for kept in states for t in kept.values() if torch.is_tensor(t)]
    return _Seen(weights, sent, sum(tensor.numel() for tensor in tensors))


def _check_weights(widths: Widths, seen: Sequence[_Seen]) -> None:
    """Compare with one process, then ask whether it is ZeRO."""
    model, ranks = _model(widths), len(seen)
    optimizer = SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step, None, ranks)
        optimizer.step()
        for rank, own in enumerate(seen):
            if not near(own.weights[step + 1], _flat(model)):
                where = f"after step {step + 1} of {STEPS} the weights of rank {rank} of {ranks}"
                raise Wrong(f"{where} {_why_weights(widths, seen, rank, step + 1)}")
    size = -(-len(_flat(model)) // ranks)
    for rank, own in enumerate(seen):
        if own.kept > size:
            raise Wrong(
                f"the weights are right, but rank {rank}'s optimizer keeps {own.kept} moments; "
                f"expected those of its slice, {size}. Make it of the slice alone."
            )
    for sent in zip(*(own.sent for own in seen), strict=True):
        check_traffic(
            sent, 8 * (ranks - 1) * ranks * size, 2 * (ranks - 1), so_far="the weights are right",
            advice="One reduce-scatter of the gradients and one all-gather of the parameters are "
            "enough: moments need not travel.",
        )  # fmt: skip


def _why_weights(widths: Widths, seen: Sequence[_Seen], rank: int, step: int) -> str:
    """What may have happened to the weights of a rank in its first wrong step."""
    found, before, ranks = seen[rank].weights[step], seen[rank].weights[step - 1], len(seen)
    if torch.equal(found, before):
        return "have not changed. Write what you gather into the parameters."
    if step > 1:
        return "are off, though they were right before. Do the moments of the last step live on?"
    firsts = [gradients(_model(widths), 0, of, ranks) for of in (None, *range(ranks))]
    mean, *own = (torch.cat([each.flatten() for each in first.values()]) for first in firsts)
    update = (before - found) / RATE
    if why := why_not(update, mean, own[rank], ranks):
        return f"were moved by a gradient that {why}"
    size = -(-len(mean) // ranks)
    moved = torch.split(update, size)
    wanted = torch.split(nn.functional.pad(mean, (0, ranks * size - len(mean))), size)
    for place, piece in enumerate(moved):
        for other in range(ranks):
            if other != place and near(piece, wanted[other][: len(piece)]):
                return (
                    f"are off in slice {place}: it was moved by the gradient of slice {other}. "
                    "Rank r must update the slice that the reduce-scatter gives it, the r-th."
                )
        if near(piece, torch.split(own[place], size)[place]):
            return f"are off in slice {place}: rank {place} used its own gradient, not the mean."
    right = near(moved[rank], wanted[rank][: len(moved[rank])])
    if right and sum(bool(piece.any()) for piece in moved) == 1:
        return "have changed in its own slice alone. All-gather the parameters, at the end."
    if any(not torch.equal(each.weights[1], seen[0].weights[1]) for each in seen):
        return "are not those of its peers. All ranks must gather the same slices."
    return f"are off by up to {RATE * (update - mean).abs().max().item():.1e}."


# ---- gradients that are freed during backward ----


class _Freed(NamedTuple):  # of what a learner's hooks do on one rank
    slices: list[Tensor]  # one of each parameter
    held: int  # the most gradients that were there at once
    sent: list[Traffic]  # in each backward


@Grader
def during_backward(function: Callable[[list[Parameter], list[Tensor]], object]) -> str:
    """Grade function(parameters, slices): hooks that reduce each gradient and let it go.

    `slices[i]` must get the mean of this rank's slice of the i-th gradient added. On real ranks, in
    two backward passes; the judge is one process on the whole batch.
    """
    work = partial(_backwards, function)
    for _, seen in on_worlds(work, [2], instead="minidist's collectives"):
        _check_freed(seen)
    return (
        f"{REAL} every rank has its slice of the mean gradient, added up over two backwards, and "
        "never more than one gradient was whole. A backward sent half of what an all-reduce sends, "
        "in a call for each parameter; ZeRO-2 puts them together in buckets."
    )


def _check_freed(seen: Sequence[_Freed]) -> None:
    ranks = len(seen)
    for rank, mine in enumerate(seen):
        for place, found in enumerate(mine.slices):
            first, second = _of_both(place, None, ranks)
            if not near(found, first[rank] + second[rank]):
                one, other = _of_both(place, rank, ranks)
                why = _why_freed(found, rank, first, second, one[rank] + other[rank])
                raise Wrong(f"on rank {rank} of {ranks} the slice of parameter {place} {why}")
    if (most := max(own.held for own in seen)) > 1:
        raise Wrong(
            f"the slices are right, but up to {most} of {len(seen[0].slices)} whole gradients were "
            "there at once. Set parameter.grad to None as soon as it has been reduced."
        )
    nbytes, many = ranks * sum(own.nbytes for own in seen[0].slices), len(seen[0].slices)
    for sent in zip(*(own.sent for own in seen), strict=True):
        check_traffic(
            sent, (ranks - 1) * nbytes, (ranks - 1) * many, so_far="the slices are right",
            advice="A rank needs its own slice of the sum: one reduce-scatter of each gradient.",
        )  # fmt: skip


def _layers(ranks: int) -> nn.Sequential:
    widths = (6, 2 * ranks, 3, ranks, 3 * ranks)  # N divides each of the weights
    return _model(widths, bias=False)


def _of_both(place: int, rank: int | None, ranks: int) -> list[Tensor]:
    """A parameter's gradient in each of two backwards, with a row for each slice."""
    model = _layers(ranks)
    both = (list(gradients(model, step, rank, ranks).values()) for step in range(2))
    return [each[place].view(ranks, -1) for each in both]


def _backwards(function: Callable[..., object], many: int) -> _Freed:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, there, held, sent = _layers(ranks), list[StorageWeakRef](), [0], list[Traffic]()
    parameters = list(model.parameters())
    slices = [torch.zeros(p.numel() // ranks) for p in parameters]

    def came(parameter: Tensor) -> None:  # before the learner's hook on the same parameter
        if parameter.grad is not None:
            there.append(StorageWeakRef(parameter.grad.untyped_storage()))  # type: ignore[no-untyped-call]

    def watch(_: Tensor) -> None:  # after it
        held.append(sum(map(takes_memory, there)))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
    function(parameters, slices)
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]
    for step in range(many):
        with minidist.record() as log:
            backward(model, step, rank, ranks)
        sent.append(Traffic.of(log))
    return _Freed(slices, max(held), sent)


def _why_freed(found: Tensor, rank: int, first: Tensor, second: Tensor, own: Tensor) -> str:
    """Of two backwards' mean gradients, and this rank's own slice of both together."""
    wanted = first + second
    if not found.any():
        return "is still zero. Register a hook on every parameter."
    if why := why_not(found, wanted[rank], own, len(wanted)):
        return why
    if near(found, 2 * first[rank] + second[rank]):
        return (
            "counts the first backward twice: its gradient was still there in the second. Set "
            "parameter.grad to None as soon as it has been reduced."
        )
    if near(found, second[rank]):
        return "has the second backward alone: add to it, gradients accumulate."
    for other, part in enumerate(wanted):
        if near(found, part):
            return f"is that of rank {other}: rank r keeps the r-th."
    return f"is off by up to {(found - wanted[rank]).abs().max().item():.1e}."


# ---- the wire ----

# Reduce-scatters and all-gathers of the whole model in one optimizer step of so many backwards.
UNITS: dict[str, Callable[[int], int]] = {
    "DDP": lambda _: 2,  # all-reduce, in the last backward
    "ZeRO-1 on DDP": lambda _: 3,
    "ZeRO-1": lambda _: 2,
    "ZeRO-2": lambda micro: micro + 1,  # a reduce-scatter in each backward
    "ZeRO-3": lambda micro: 3 * micro,  # and two all-gathers
    "ZeRO-3, weights kept": lambda micro: 2 * micro,  # one: they stay until backward
}


@Exercise
def wire() -> Table:
    """Grade function(strategy, nbytes, ranks, micro): bytes that each rank sends in a step."""
    sizes, worlds = (64 * 10**6, 7 * 2**20, 3 * 10**9), (4, 1, 8, 64, 3)

    def sent(strategy: str, nbytes: int, ranks: int, micro: int) -> float:
        return UNITS[strategy](micro) * (ranks - 1) / ranks * nbytes

    return numbers(
        within=0.99,  # rounded to whole bytes is right, too
        cases=[(way, *case) for *case, way in product(sizes, worlds, (1, 3, 5), UNITS)],
        right=sent,
        told="For {} with {:,} bytes, {} ranks and {} backwards per step",
        slips={
            "A rank need not send its own slice: (N - 1)/N of it.":
                lambda way, nbytes, _, micro: UNITS[way](micro) * nbytes,
            "Alone, a rank sends nothing: the factor is (N - 1)/N.":
                lambda way, nbytes, ranks, micro: sent(way, nbytes, max(ranks, 2), micro),
            "That is what all ranks send together.":
                lambda way, nbytes, ranks, micro: ranks * sent(way, nbytes, ranks, micro),
            "That is with one backward; gradients and parameters are freed after each.":
                lambda way, nbytes, ranks, _: sent(way, nbytes, ranks, 1),
            "Not everything is done in each backward: what waits for the step?":
                lambda way, nbytes, ranks, micro: micro * sent(way, nbytes, ranks, 1),
            "A reduce-scatter is half of an all-reduce, and the step ends without a gather.":
                lambda way, nbytes, ranks, micro: (
                    sent(way, nbytes, ranks, micro) * (5 / 3 if way == "ZeRO-3" else 1)
                ),
        },
        otherwise=lambda *_: (
            "Count reduce-scatters and all-gathers: each sends (N - 1)/N of the model."
        ),
        solved=f"for all {len(UNITS)} strategies, from 1 to 64 ranks, with one, three and five "
        "backwards per step. With one, ZeRO-2 sends what DDP sends; with three, ZeRO-3 sends four "
        "and a half times as much.",
    )  # fmt: skip
