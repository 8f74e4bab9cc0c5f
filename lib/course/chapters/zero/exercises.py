"""Graders of the lab on ZeRO: the step by hand, and bytes on the wire."""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import minidist
from course.ask.averages import averages, backward, flat, gradients, layers, net, off
from course.ask.forbidden import without_wrappers
from course.ask.ranks import REAL, Check, Cost, Traffic, alike, graded
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Wrong, draws

STEPS, RATE = 3, 0.1


Widths = tuple[int, ...]
# 59 elements; and 10, of which rank 4 of 5 has 2.
MODELS: tuple[Widths, ...] = ((4, 5, 4, 2), (1, 3, 1))


@graded(
    f"{REAL}, with {len(MODELS)} models, the weights are those of one process with the whole batch "
    f"in all {STEPS} steps. Each rank keeps the moments of its slice alone, and sends in two calls "
    "what one all-reduce sends.",
    lambda: [(widths,) for widths in MODELS],
    layers,
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

    with without_wrappers("minidist's collectives"):
        step = function(list(model.parameters()), make)
    if not callable(step):
        raise Wrong(f"you return a {type(step).__name__}, expected a function that takes a step.")
    weights, sent = [flat(model.parameters())], []
    for number in range(STEPS):
        model.zero_grad()
        backward(model, number, rank, ranks)
        if number == STEPS - 1:  # an optimizer of the reader's own does not know
            for group in (group for each in made for group in each.param_groups):
                group["lr"] = RATE * (rank + 1)
        with minidist.record() as log:
            step()
        sent.append(Traffic.of(log))
        weights.append(flat(model.parameters()))
    same = alike(weights[1])  # before the first check, after which a rank may stop
    tensors = [[t for own in each.state.values() for t in own.values()] for each in made]
    kept = max(sum(t.numel() for t in own if torch.is_tensor(t)) for own in [[], *tensors])
    size = -(-len(weights[0]) // ranks)
    yield kept > size and (
        f"with {len(weights[0])} weights, the optimizer keeps {kept} moments; expected those of "
        f"its slice, {size}. Make it of the slice alone."
    )
    yield from _compared(widths, weights, same)
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
OWN = (
    "have moved by `make`'s first rate. Before the last step rank r's optimizer gets r + 1 times "
    "that, for its slice: step with it alone."
)
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
        held = flat(model.parameters())
        optimizer.step()
        moved, last = flat(model.parameters()) - held, step == STEPS - 1
        tensors = before, after, held + moved, firsts[0], firsts[1 + rank]
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
            if last:
                slips[OWN] = right
                right = right + place * torch.split(moved, size)[place]
            name = f"after step {step + 1} of {STEPS}, the weights in slice {place}"
            yield off(name, found, right, slips, LATER if step else OFF_BY if same else APART)


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
    draw = draws(93)
    sizes, worlds = (64 * 10**6, 7 * 2**20, draw.randrange(10**9)), (4, 1, 8, 64, 3)
    cases = [*product(sizes, worlds, (1, 3, 5))]
    cases += [(draw.randrange(10**8), draw.randrange(2, 99), draw.randrange(2, 9)) for _ in "abc"]

    def sent(strategy: str, nbytes: int, ranks: int, micro: int) -> float:
        return UNITS[strategy](micro) * (ranks - 1) / ranks * nbytes

    return numbers(
        within=0.99,  # rounded to whole bytes is right, too
        cases=[(way, *case) for case in cases for way in UNITS],
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
        solved=f"for all {len(UNITS)} strategies, on one rank and on many, with one backward per "
        "step and with several. With one, ZeRO-2 sends what DDP sends; with three, ZeRO-3 sends "
        "four and a half times as much.",
    )  # fmt: skip
