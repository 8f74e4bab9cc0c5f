"""Graders of the lab on ZeRO: who owns what, the step by hand, freeing gradients, the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

import minidist
from course.graders.verdict import Wrong, ask_number, ask_pairs, grader
from course.sandbox.ranks import on_ranks
from minidist.parallel.sharding.layouts import Flat

__all__ = ["by_hand", "during_backward", "slices", "wire"]

RANKS, STEPS, RATE = 3, 3, 0.1
Range = tuple[int, int]


# ---- who owns what ----


@grader
def slices(function: Callable[[list[int], int, int], Sequence[Range]]) -> str:
    """Grade function(sizes, ranks, rank): of each parameter the elements [start, end) of a rank.

    The parameters lie end to end, padded to a multiple of `ranks`. The judge is
    `minidist.parallel.sharding.layouts`.
    """
    cases = [([5, 2], 4), ([4, 4], 2), ([10], 3), ([3, 1, 4, 1, 5, 9], 4), ([2, 1], 5), ([7], 1)]
    for (sizes, ranks), rank in ((case, rank) for case in cases for rank in range(case[1])):
        case = f"For parameters of {sizes} elements on {ranks} ranks, rank {rank}: "
        expected = "a list of (start, end)"
        found = ask_pairs(function, list(sizes), ranks, rank, case=case, expected=expected)
        right = _ranges(sizes, ranks, rank)
        if _owned(found) != _owned(right) or len(found) != len(right):
            why = _why_slices(found, sizes, ranks, rank)
            raise Wrong(f"{case}you say {found}, expected {right}. {why}")
    return (
        f"right for every rank of {len(cases)} models. The cuts fall anywhere, also inside a "
        "parameter, and a rank may own padding alone: that is the price of equal slices."
    )


def _ranges(sizes: Sequence[int], ranks: int, rank: int) -> list[Range]:
    return Flat([torch.Size([size]) for size in sizes], ranks, rank).ranges()


def _owned(ranges: Sequence[Range]) -> set[tuple[int, int]]:
    """The elements: where none is owned it does not matter how that is written."""
    return {(place, i) for place, (start, end) in enumerate(ranges) for i in range(start, end)}


def _why_slices(found: list[Range], sizes: list[int], ranks: int, rank: int) -> str:
    own = _owned(found)
    others = [r for r in range(ranks) if own and own == _owned(_ranges(sizes, ranks, r))]
    if len(found) != len(sizes):
        return f"Expected a range for each of the {len(sizes)} parameters, empty or not."
    if others:
        return f"That is the slice of rank {others[0]}: rank r owns the r-th."
    if sum(sizes) % ranks and len(own) == sum(sizes) // ranks:
        return "Round up: all slices are equally long, and the last one may hold padding."
    if any(end > size for (_, end), size in zip(found, sizes, strict=True)):
        return "Count within the parameter: its first element is 0, and its end is its size."
    return "A slice has ceil(sum(sizes) / ranks) elements of the parameters laid end to end."


# ---- ZeRO-1 by hand ----


class _Seen(NamedTuple):
    """What one rank has seen of a learner's ZeRO-1."""

    weights: list[torch.Tensor]  # flat: at the start, and after each step
    own: list[torch.Tensor]  # its own gradient in each step
    sent: int  # bytes of one step's messages
    kept: int  # elements that its optimizers keep


@grader
def by_hand(function: Callable[[list[Parameter], Callable[..., Optimizer]], object]) -> str:
    """Grade function(parameters, make), which returns step(): ZeRO-1 of local gradients.

    `make(tensors)` builds SGD with momentum. On real ranks with different data; the judge is one
    process on the whole batch.
    """
    seen: list[_Seen] = on_ranks(_train, RANKS, function)
    model = _model()
    optimizer = SGD(model.parameters(), lr=RATE, momentum=0.9)
    right = [_flat(model)]
    for step in range(STEPS):
        optimizer.zero_grad()
        _gradient(model, step, None)
        optimizer.step()
        right.append(_flat(model))
    for step in range(1, STEPS + 1):
        for rank, own in enumerate(seen):
            if not torch.allclose(own.weights[step], right[step], rtol=1e-4, atol=1e-6):
                where = f"after step {step} of {STEPS} the weights of rank {rank}"
                raise Wrong(f"{where} {_why_weights(seen, rank, step)}")
    _check_cost(seen)
    padded = -(-len(right[0]) // RANKS)
    return (
        f"on {RANKS} real processes the weights are those of one process with the whole batch in "
        f"all {STEPS} steps, and each rank keeps {padded} of {len(right[0])} moments. A rank sent "
        f"{seen[0].sent:,} bytes in a step, as for an all-reduce."
    )


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    linears = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)  # 59 elements: slices of 20
    return nn.Sequential(linears[0], nn.Tanh(), linears[1], nn.Tanh(), linears[2])


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def _gradient(model: nn.Module, step: int, rank: int | None) -> None:
    """Backward of the mean loss on a rank's samples of the batch; on all of them if None."""
    generator = torch.Generator().manual_seed(step)
    batch = 2 * torch.randn(4 * RANKS, 4, generator=generator) + 1
    own = batch if rank is None else batch.tensor_split(RANKS)[rank]
    torch.autograd.backward(model(own).square().mean())


def _train(function: Callable[..., Any]) -> _Seen:
    model, made, own, sent = _model(), list[Optimizer](), [], 0

    def make(tensors: Iterable[torch.Tensor]) -> Optimizer:
        made.append(SGD(list(tensors), lr=RATE, momentum=0.9))
        return made[-1]

    step = function(list(model.parameters()), make)
    weights = [_flat(model)]
    for number in range(STEPS):
        model.zero_grad()
        _gradient(model, number, dist.get_rank())
        own.append(torch.cat([_grad(p).flatten() for p in model.parameters()]).clone())
        with minidist.record() as log:
            step()
        sent = sum(message.nbytes for message in log)
        weights.append(_flat(model))
    states = [kept for optimizer in made for kept in optimizer.state.values()]
    tensors = [t for kept in states for t in kept.values() if torch.is_tensor(t)]
    return _Seen(weights, own, sent, sum(tensor.numel() for tensor in tensors))


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _why_weights(seen: Sequence[_Seen], rank: int, step: int) -> str:
    """What may have happened to the weights of a rank in its first wrong step."""
    found, before = seen[rank].weights[step], seen[rank].weights[step - 1]
    if torch.equal(found, before):
        return "have not changed. Write what you gather into the parameters."
    if step > 1:
        return "are off, though they were right before. Do the moments of the last step live on?"
    mean = torch.stack([each.own[0] for each in seen]).mean(0)
    update = (before - found) / RATE
    if _near(update, RANKS * mean):
        return f"have moved {RANKS} times too far: divide the sum by the number of ranks."
    if _near(update, mean / RANKS):
        return "have not moved far enough: the gradients are divided twice."
    if _near(update, seen[rank].own[0]):
        return "were moved by its own gradient alone. Reduce-scatter the gradients."
    return _why_a_slice(seen, rank, mean, update)


def _why_a_slice(seen: Sequence[_Seen], rank: int, mean: torch.Tensor, update: torch.Tensor) -> str:
    size = -(-len(mean) // RANKS)
    moved = torch.split(update, size)
    wanted = torch.split(nn.functional.pad(mean, (0, RANKS * size - len(mean))), size)
    for place, piece in enumerate(moved):
        others = [other for other in range(RANKS) if other != place]
        for other in others:
            if _near(piece, wanted[other][: len(piece)]):
                return (
                    f"are off in slice {place}: it was moved by the gradient of slice {other}. "
                    "Rank r must update the slice that the reduce-scatter gives it, the r-th."
                )
        if _near(piece, torch.split(seen[place].own[0], size)[place]):
            return f"are off in slice {place}: rank {place} used its own gradient, not the mean."
    still = [place for place, piece in enumerate(moved) if not piece.any()]
    if _near(moved[rank], wanted[rank][: len(moved[rank])]) and len(still) == RANKS - 1:
        return "have changed in its own slice alone. All-gather the parameters, at the end."
    if any(not torch.equal(each.weights[1], seen[0].weights[1]) for each in seen):
        return "are not those of its peers. All ranks must gather the same slices."
    return f"are off by up to {RATE * (update - mean).abs().max().item():.1e}."


def _near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)


def _check_cost(seen: Sequence[_Seen]) -> None:
    """The weights are right: is it ZeRO?"""
    size = -(-len(seen[0].weights[0]) // RANKS)
    for rank, own in enumerate(seen):
        if own.kept > size:
            raise Wrong(
                f"the weights are right, but rank {rank}'s optimizer keeps {own.kept} moments; "
                f"expected those of its slice, {size}. Make it of the slice alone."
            )
        units = own.sent / ((RANKS - 1) * size * 4)
        if units > 2.01:
            raise Wrong(
                f"the weights are right, but rank {rank} sent {units:.1f} times (N - 1)/N of the "
                "model in a step; expected 2. One reduce-scatter of the gradients and one "
                "all-gather of the parameters are enough: moments need not travel."
            )


# ---- gradients that are freed during backward ----


class _Freed(NamedTuple):
    """What one rank has seen of a learner's hooks, parameter by parameter."""

    slices: list[torch.Tensor]
    own: list[torch.Tensor]  # the gradients of both backwards together, flat
    last: list[torch.Tensor]  # of the second one
    held: int  # the most gradients that were there at once


@grader
def during_backward(function: Callable[[list[Parameter], list[torch.Tensor]], object]) -> str:
    """Grade function(parameters, slices): hooks that reduce each gradient and let it go.

    `slices[i]` must get the mean of this rank's slice of the i-th gradient added. On real ranks, in
    two backward passes; the judge adds up the ranks' own gradients.
    """
    seen: list[_Freed] = on_ranks(_two_backwards, RANKS, function)
    for rank, own in enumerate(seen):
        for place, found in enumerate(own.slices):
            mean = torch.stack([each.own[place] for each in seen]).mean(0)
            if not _near(found, mean.chunk(RANKS)[rank]):
                last = torch.stack([each.last[place] for each in seen]).mean(0)
                why = _why_freed(found, rank, mean, own.own[place], last)
                raise Wrong(f"on rank {rank} the slice of parameter {place} {why}")
    most = max(own.held for own in seen)
    if most > 1:
        raise Wrong(
            f"the slices are right, but up to {most} of {len(seen[0].slices)} whole gradients were "
            "there at once. Set parameter.grad to None as soon as it has been reduced."
        )
    return (
        f"on {RANKS} real processes every rank has its slice of the mean gradient, added up over "
        f"two backwards, and never more than {max(most, 1)} of {len(seen[0].slices)} gradients "
        "was whole. It made a call for each parameter; ZeRO-2 puts them together in buckets."
    )


def _layers() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 6, bias=False) for _ in range(4))  # 3 ranks divide each
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def _two_backwards(function: Callable[..., object]) -> _Freed:
    model, alone = _layers(), _layers()
    parameters = list(model.parameters())
    slices = [torch.zeros(parameter.numel() // RANKS) for parameter in parameters]
    function(parameters, slices)
    held = []

    def watch(_: torch.Tensor) -> None:  # after the learner's hook on the same parameter
        held.append(sum(parameter.grad is not None for parameter in parameters))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]
    for number in range(2):
        generator = torch.Generator().manual_seed(10 * dist.get_rank() + number)
        batch = torch.randn(4, 6, generator=generator) + 1
        for each in (model, alone):
            torch.autograd.backward(each(batch).square().sum())
        if number == 0:
            first = [_grad(parameter).clone() for parameter in alone.parameters()]
    own = [_grad(parameter) for parameter in alone.parameters()]
    last = [(both - one).flatten() for both, one in zip(own, first, strict=True)]
    return _Freed(slices, [each.flatten() for each in own], last, max(held))


def _why_freed(
    found: torch.Tensor, rank: int, mean: torch.Tensor, own: torch.Tensor, last: torch.Tensor
) -> str:
    wanted = mean.chunk(RANKS)
    if not found.any():
        return "is still zero. Register a hook on every parameter."
    if _near(found, RANKS * wanted[rank]):
        return f"is the sum over {RANKS} ranks, expected the mean: divide by their number."
    if _near(found, (2 * mean - last).chunk(RANKS)[rank]):
        return (
            "counts the first backward twice: its gradient was still there in the second. Set "
            "parameter.grad to None as soon as it has been reduced."
        )
    if _near(found, last.chunk(RANKS)[rank]):
        return "has the second backward alone: add to it, gradients accumulate."
    if any(_near(found, own.chunk(RANKS)[part] / by) for part in range(RANKS) for by in (1, RANKS)):
        return "is of its own gradient alone: reduce-scatter it."
    for other in range(RANKS):
        if _near(found, wanted[other]):
            return f"is that of rank {other}: rank r keeps the r-th."
    return f"is off by up to {(found - wanted[rank]).abs().max().item():.1e}."


# ---- the wire ----

STRATEGIES = ("DDP", "ZeRO-1 on DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def _units(strategy: str, micro: int) -> int:
    """Reduce-scatters and all-gathers of the whole model in one optimizer step."""
    return {
        "DDP": 2,  # all-reduce, in the last backward
        "ZeRO-1 on DDP": 3,
        "ZeRO-1": 2,
        "ZeRO-2": micro + 1,  # a reduce-scatter in each backward
        "ZeRO-3": 3 * micro,  # and two all-gathers
    }[strategy]


@grader
def wire(function: Callable[[str, int, int, int], float]) -> str:
    """Grade function(strategy, nbytes, ranks, micro): bytes that each rank sends in a step."""
    nbytes = 64 * 10**6
    for micro, ranks, strategy in product((1, 3), (4, 1, 8, 64), STRATEGIES):
        answer = ask_number(function, strategy, nbytes, ranks, micro)
        right = _units(strategy, micro) * (ranks - 1) / ranks * nbytes
        if not math.isclose(answer, right, rel_tol=1e-9, abs_tol=1e-6):
            raise Wrong(
                f"For {strategy} with {nbytes:,} bytes, {ranks} ranks and {micro} backwards to a "
                f"step you say {answer:,.0f}, expected {right:,.0f}. "
                f"{_why_wire(answer, strategy, nbytes, ranks, micro)}"
            )
    return (
        f"right for {len(STRATEGIES)} strategies, from 1 to 64 ranks, with and without "
        "accumulation. With one backward to a step ZeRO-2 sends what DDP sends; with three, ZeRO-3 "
        "sends four and a half times as much."
    )


def _why_wire(answer: float, strategy: str, nbytes: int, ranks: int, micro: int) -> str:
    unit, units, once = (ranks - 1) / ranks * nbytes, _units(strategy, micro), _units(strategy, 1)
    if ranks == 1:
        return "Alone, a rank sends nothing: the factor is (N - 1)/N."
    if math.isclose(answer, units * nbytes):
        return "A rank need not send its own slice: (N - 1)/N of it."
    if math.isclose(answer, ranks * units * unit):
        return "That is what all ranks send together."
    if micro > 1 and math.isclose(answer, once * unit):
        return "That is with one backward to a step; gradients and parameters are freed after each."
    if micro > 1 and math.isclose(answer, once * micro * unit):
        return "Not everything is done again in each backward: what waits for the step?"
    if strategy == "ZeRO-3" and math.isclose(answer, 5 * unit):
        return "A reduce-scatter is half of an all-reduce, and the step ends without a gather."
    return "Count reduce-scatters and all-gathers: each sends (N - 1)/N of the model."
