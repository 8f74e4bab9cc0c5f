"""Graders of the lab on ZeRO: who owns what, the step by hand, freeing gradients, the wire."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import minidist
from course.ask.averages import averages, backward, flat, gradients, net, off
from course.ask.ranks import REAL, Check, Cost, Storages, Traffic, alike, graded
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Range, Wrong, draws, list_of, pair, same_ranges
from minidist.parallel.sharding.layouts import Flat

STEPS, RATE = 3, 0.1


@Exercise
def slices() -> Table:
    """Grade function(sizes, ranks, rank): of each parameter the elements [start, end) of a rank.

    The parameters lie end to end, padded to a multiple of `ranks`.
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


Widths = tuple[int, ...]
# 59 elements; and 10, of which rank 4 of 5 has 2.
MODELS: tuple[Widths, ...] = ((4, 5, 4, 2), (1, 3, 1))


@graded(
    f"{REAL}, with {len(MODELS)} models, the weights are those of one process with the whole batch "
    f"in all {STEPS} steps. Each rank keeps the moments of its slice alone, and sends in two calls "
    "what one all-reduce sends.",
    lambda: [(widths,) for widths in MODELS],
    instead="minidist's collectives",
)
def by_hand(function: Callable[..., Any], widths: Widths) -> Iterator[Check]:
    """Grade function(parameters, make), which returns step(): ZeRO-1 of local gradients.

    `make(tensors)` builds SGD with momentum. Ranks have different data.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, made = net(widths), list[Optimizer]()

    def make(tensors: Iterable[Tensor]) -> Optimizer:
        made.append(SGD(list(tensors), lr=RATE, momentum=0.9))
        return made[-1]

    step = function(list(model.parameters()), make)
    if not callable(step):
        raise Wrong(f"you return a {type(step).__name__}, expected a function that takes a step.")
    weights, sent = [flat(model.parameters())], []
    for number in range(STEPS):
        model.zero_grad()
        backward(model, number, rank, ranks)
        with minidist.record() as log:
            step()
        sent.append(Traffic.of(log))
        weights.append(flat(model.parameters()))
    yield from _compared(widths, weights, alike(weights[1]))
    states = [kept for optimizer in made for kept in optimizer.state.values()]
    kept = sum(t.numel() for state in states for t in state.values() if torch.is_tensor(t))
    size = -(-len(weights[0]) // ranks)
    yield kept > size and (
        f"the weights are right, but the optimizer keeps {kept} moments; expected those of its "
        f"slice, {size}. Make it of the slice alone."
    )
    for each in sent:
        yield Cost(
            each, 8 * (ranks - 1) * ranks * size, 2 * (ranks - 1), "the weights are right",
            advice="One reduce-scatter of the gradients and one all-gather of the parameters are "
            "enough: moments need not travel.",
        )  # fmt: skip


WRITE = "Write what you gather into the parameters."
GATHER = "They are another rank's: all-gather the parameters, at the end."
RTH = "Rank r must update the slice that the reduce-scatter gives it, the r-th."
OFF_BY = "are off by up to {off:.1e}."
APART = "are not those of its peers. All ranks must gather the same slices."
LATER = "are off, though they were right before. Do the moments of the last step live on?"


def _compared(widths: Widths, weights: list[Tensor], same: bool) -> Iterator[Check]:
    """Compare with one process, slice by slice; `same`: whether ranks agree after a step."""
    rank, ranks, model = dist.get_rank(), dist.get_world_size(), net(widths)
    size = -(-len(weights[0]) // ranks)
    firsts = [flat(gradients(model, 0, of, ranks).values()) for of in (None, *range(ranks))]
    padded = nn.functional.pad(firsts[0], (0, ranks * size - len(firsts[0])))
    optimizer = SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step, (before, after) in enumerate(pairwise(weights)):
        optimizer.zero_grad()
        backward(model, step, None, ranks)
        optimizer.step()
        tensors = before, after, flat(model.parameters()), firsts[0], firsts[1 + rank]
        slices = zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)
        for place, (old, found, right, mean, own) in enumerate(slices):
            slips = {f"have not changed. {WRITE if place == rank else GATHER}": old}
            moved_by = averages((old - found) / RATE, mean, own, ranks) | {
                f"belongs to slice {other}. {RTH}": part[: len(mean)]
                for other, part in enumerate(torch.split(padded, size))
            }
            if step == 0:
                slips |= {f"were moved by a gradient that {why}": old - RATE * gradient
                          for why, gradient in moved_by.items()}  # fmt: skip
            name = f"after step {step + 1} of {STEPS}, the weights in slice {place}"
            yield off(name, found, right, slips, LATER if step else OFF_BY if same else APART)


@graded(
    f"{REAL} every rank has its slice of the mean gradient, added up over two backwards, and never "
    "more than one gradient was whole. A backward sent half of what an all-reduce sends, in a call "
    "for each parameter; ZeRO-2 puts them together in buckets.",
    instead="minidist's collectives",
)
def during_backward(function: Callable[..., object]) -> Iterator[Check]:
    """Grade function(parameters, slices): hooks that reduce each gradient and let it go.

    `slices[i]` must get the mean of this rank's slice of the i-th gradient added, in each backward.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    widths = (6, 2 * ranks, 3, ranks, 3 * ranks)  # N divides each of the weights
    model, storages, held, sent = net(widths, bias=False), Storages(), [0], list[Traffic]()
    parameters = list(model.parameters())
    slices = [torch.zeros(p.numel() // ranks) for p in parameters]

    def came(parameter: Tensor) -> None:  # before the learner's hook on the same parameter
        if parameter.grad is not None:
            storages.watch(parameter.grad)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
    function(parameters, slices)
    for parameter in parameters:  # after it
        parameter.register_post_accumulate_grad_hook(lambda _: held.append(storages.held()))  # type: ignore[no-untyped-call]
    for step in range(2):
        with minidist.record() as log:
            backward(model, step, rank, ranks)
        sent.append(Traffic.of(log))
    yield from _compared_slices(net(widths, bias=False), slices)
    yield max(held) > 1 and (
        f"the slices are right, but up to {max(held)} of {len(slices)} whole gradients were "
        "there at once. Set parameter.grad to None as soon as it has been reduced."
    )
    nbytes = ranks * sum(own.nbytes for own in slices)
    for each in sent:
        yield Cost(
            each, (ranks - 1) * nbytes, (ranks - 1) * len(slices), "the slices are right",
            advice="A rank needs its own slice of the sum: one reduce-scatter of each gradient.",
        )  # fmt: skip


def _compared_slices(model: nn.Module, slices: list[Tensor]) -> Iterator[Check]:
    """Compare with the gradients of two backwards in one process."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    means, owns = (
        [list(gradients(model, step, of, ranks).values()) for step in range(2)]
        for of in (None, rank)
    )
    for place, found in enumerate(slices):
        first, second = (mean[place].view(ranks, -1) for mean in means)
        own = (owns[0][place] + owns[1][place]).view(ranks, -1)[rank]
        yield off(f"the slice of parameter {place}", found, (first + second)[rank], {
            "is still zero. Register a hook on every parameter.": torch.zeros_like(found),
            **averages(found, (first + second)[rank], own, ranks),
            "counts the first backward twice: its gradient was still there in the second. Set "
            "parameter.grad to None as soon as it has been reduced.": (2 * first + second)[rank],
            "has the second backward alone: add to it, gradients accumulate.": second[rank],
            **{
                f"is that of rank {other}: rank r keeps the r-th.": part
                for other, part in enumerate(first + second)
            },
        })  # fmt: skip


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
