"""Graders of the lab on feeding the ranks: samples, accumulation, learning rate, checkpoints.

What is right comes from torch's own sampler and scheduler, and from one process on the whole batch.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

import minidist
from course.ask.averages import OFF, flat, net, off, times
from course.ask.forbidden import nothing_but
from course.ask.ranks import REAL, Check, Cost, Traffic, graded
from course.ask.table import Exercise, Table, amount
from course.ask.verdict import Wrong, list_of, many, number, whole
from course.chapters.feeding.saving import save as save
from minidist.comm.ours import Ours

MICRO = (4, 1, 3)  # backward passes to a step, in `accumulate`
ROWS = 5  # in a batch there


@Exercise
def indices() -> Table:
    """Grade function(size, ranks, rank, epoch, drop_last): the samples of one rank, in order."""
    sizes = [(10, 4), (12, 4), (7, 2), (5, 1), (3, 8), (97, 5), (41, 6), (64, 16), (1, 3)]

    def drawn(size: int, ranks: int, rank: int, epoch: int, drop_last: bool) -> list[int]:
        samples: Any = range(size)  # all that it asks of them is their number
        sampler = DistributedSampler[Any](samples, ranks, rank, drop_last=drop_last)
        sampler.set_epoch(epoch)
        return list(sampler)

    def shuffled(size: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(size, generator=generator).tolist()

    def padded(order: list[int], ranks: int, drop_last: bool) -> list[int]:
        """Cut or repeated to a multiple of the number of ranks."""
        count = len(order) // ranks if drop_last else -(-len(order) // ranks)
        return (order * ranks)[: count * ranks]

    def consecutive(size: int, ranks: int, rank: int, epoch: int, drop_last: bool) -> list[int]:
        order = padded(shuffled(size, epoch), ranks, drop_last)
        return order[rank * len(order) // ranks : (rank + 1) * len(order) // ranks]

    return Table(
        cases=[
            (size, ranks, rank, epoch, drop_last)
            for (size, ranks), drop_last, epoch in product(sizes, (False, True), (0, 3, 17))
            for rank in range(ranks)
        ],
        right=drawn,
        told="For {} samples on {} ranks, rank {} in epoch {}, drop_last={},",
        read=list_of(whole),
        expected="a list of numbers",
        show=lambda samples: str(samples) if len(samples) < 9 else f"{samples[:7]}"[:-1] + ", ...]",
        slips={
            "That is the order of epoch 0: seed the generator with the epoch.":
                lambda size, ranks, rank, _, drop_last: drawn(size, ranks, rank, 0, drop_last),
            "Some ranks have a sample more and would run on without their peers. Repeat the first "
            "samples, or drop the last.":
                lambda size, ranks, rank, epoch, _: shuffled(size, epoch)[rank::ranks],
            "Repeat the first samples only where none are dropped.":
                lambda size, ranks, rank, epoch, _: drawn(size, ranks, rank, epoch, False),
            "Drop the last samples only where `drop_last` says so.":
                lambda size, ranks, rank, epoch, _: drawn(size, ranks, rank, epoch, True),
            "All ranks must shuffle alike: the seed is the epoch, not the rank.":
                lambda size, ranks, rank, epoch, drop_last: (
                    padded(shuffled(size, epoch + rank), ranks, drop_last)[rank::ranks]
                ),
            "Shuffle with torch.randperm and a generator of its own, seeded with the epoch.":
                lambda size, ranks, rank, _, drop_last: (
                    padded([*range(size)], ranks, drop_last)[rank::ranks]
                ),
            "A fair split, but not the sampler's: rank r takes places r, r + N, r + 2N, ...":
                consecutive,
        },
        otherwise=lambda found, *case: (
            f"Expected {many(len(drawn(*case)), 'sample')}, from 0 to {case[0] - 1}, and the "
            "repeated ones from the front of the shuffled order."
        ),
        solved=f"your ranks draw what torch's DistributedSampler gives them, for {len(sizes)} "
        "sizes on 1 to 16 ranks, in three epochs, padded and dropped. No rank had to ask another: "
        "each shuffles all numbers alike and takes its own.",
    )  # fmt: skip


def _batches(rank: int, micro: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    return list(torch.randn(micro, ROWS, 6, generator=generator))


def _loss(output: torch.Tensor) -> torch.Tensor:
    return (output - 1).square().mean()


def _watch(output: torch.Tensor, held: set[int], most: list[int]) -> None:
    """Count a forward as held until backward comes to its output."""
    if output.requires_grad:
        number = len(most)
        held.add(number)
        most.append(len(held))
        output.register_hook(lambda _: held.discard(number))  # type: ignore[no-untyped-call]


@graded(
    f"{REAL}, after {', '.join(map(str, MICRO))} backwards to a step, the gradient is that of one "
    "process that has all batches; and the model's gradients were all-reduced once, in one call, "
    "however many backwards there were.",
    lambda: [(micro,) for micro in MICRO],
    lambda micro: f"with {many(micro, 'batch')} on each rank",
)
def accumulate(function: Callable[..., object], micro: int) -> Iterator[Check]:
    """Grade function(model, batches, loss), which must leave the gradient of all batches.

    `model` is wrapped, `batches` are of the same size, `loss(output)` is a mean.
    """
    own, alone, rows, ranks = net((6, 8, 3)), net((6, 8, 3)), list[int](), dist.get_world_size()
    own.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    held, most = set[int](), list[int]()  # forwards whose backward is to come, and how many
    own.register_forward_hook(lambda *call: _watch(call[-1], held, most))
    model = minidist.DistributedDataParallel(own, comm=Ours(algorithm="ring"))
    with nothing_but("the wrapped model") as beside, minidist.record() as log:
        function(model, _batches(dist.get_rank(), micro), _loss)
        more = beside()
    if max(rows, default=0) > ROWS:
        raise Wrong(
            f"a forward has {max(rows)} rows, where a batch has {ROWS}: accumulation is there for "
            "batches whose activations do not fit together. Take one at a time."
        )
    if max(most, default=0) > 1:
        raise Wrong(
            f"the activations of {max(most)} forwards are held at once: call backward after each "
            "forward, which frees them."
        )
    whole = torch.cat([batch for rank in range(ranks) for batch in _batches(rank, micro)])
    torch.autograd.backward(_loss(alone(whole)))
    found, right = (flat(p.grad for p in model.parameters()) for model in (own, alone))
    sent = Traffic.of(log)
    yield len(found) < len(right) and "there is no gradient of every parameter. Call backward."
    yield sent.nbytes == 0 and (
        "nothing was all-reduced: the gradient is of this rank's own batches alone. The last "
        "backward must be outside of no_sync()."
    )
    factor = times(found, right) or 1.0
    size = f"{factor:.3g} times too large" if factor > 1 else f"{1 / factor:.3g} times too small"
    scaled = f"is {size}: divide each loss once, by the number of batches, {micro}."
    every = f"{OFF} Every batch must go through model and backward once."
    yield off("the gradient", found, right, {scaled: factor * right}, every)
    yield Cost(
        sent, 2 * (ranks - 1) * right.nbytes, 2 * (ranks - 1),
        "the gradient is right",
        advice="Only the last backward need talk to the other ranks: the others belong under "
        "model.no_sync().", too_little="Let the last backward of the wrapped model do it.",
    )  # fmt: skip
    yield more and f"the gradient is right, and {more}"


@Exercise
def rate() -> Table:
    """Grade function(step, base, factor, warmup): the learning rate of a step, counted from 0.

    From `base` up to `factor * base` in `warmup` equal increments, then constant: the gradual
    warm-up of Goyal et al. (2017), section 2.2.
    """
    runs = ((0.1, 8.0, 10), (0.05, 4.0, 5), (0.4, 32.0, 1), (0.1, 1.0, 3), (0.07, 1.5, 23))

    def scheduled(step: int, base: float, factor: float, warmup: int) -> float:
        if not warmup:
            return factor * base
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=factor * base)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / factor, total_iters=warmup)
        for _ in range(step):
            optimizer.step()
            schedule.step()
        return float(optimizer.param_groups[0]["lr"])

    def part(step: int, warmup: int) -> float:
        """The share of the warm-up that has been taken; 2 is twice as many steps."""
        return step / warmup if warmup else 1

    return Table(
        cases=[
            *((step, *run) for run in runs for step in range(run[-1] + 5)),
            *((step, *run, 0) for run in ((0.1, 8.0), (0.3, 2.5)) for step in (0, 1, 7)),
        ],
        right=scheduled,
        told="For step {} with base {}, factor {}, warm-up {}",
        read=number,
        expected="a learning rate, a number",
        same=partial(math.isclose, rel_tol=1e-6),
        show=amount,
        slips={
            "The first step is taken with the base rate: it is not zero.":
                lambda step, base, factor, warmup: factor * base * min(1, part(step, warmup)),
            "Steps count from 0: the first has the base rate.":
                lambda step, *run: scheduled(step + 1, *run),
            "It must not grow beyond factor * base.":
                lambda step, base, factor, warmup: base + (factor - 1) * base * part(step, warmup),
            "There is a warm-up: the rate begins at base.":
                lambda _, base, factor, __: factor * base,
            "The rate grows with the number of ranks: it ends at factor * base.":
                lambda _, base, *__: base,
            "Every step adds as much as the one before it; do not multiply.":
                lambda step, base, factor, warmup: base * factor ** min(1, part(step, warmup)),
        },
        otherwise=lambda _, step, __, ___, warmup: (
            "From step `warmup` on it is factor * base." if step >= warmup
            else "In between, every step adds as much as the one before it."
        ),
        solved=f"yours is the rate of torch's LinearLR in {len(runs)} runs, at every step up to "
        "five after the warm-up, and the full rate where there is none. The first step is taken "
        "with the rate that one rank would have taken.",
    )  # fmt: skip
