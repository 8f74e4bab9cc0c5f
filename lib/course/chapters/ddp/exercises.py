"""Graders of the lab on DistributedDataParallel."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

import minidist
from course.ask.averages import OFF, averages, gradients, layers, net, off
from course.ask.forbidden import without_wrappers
from course.ask.ranks import REAL, Check, Cost, Traffic, alike, graded
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Wrong, ask_as, draws, formula, list_of, number, whole
from minidist.schedule.buckets import assign

STEPS = 2
MIB = 1 << 20
HINTS = {
    "disagree": " All ranks must reduce the same parameters in the same order.",
    "requires grad": " Write through parameter.detach(), which shares its memory.",
}
Tensors = dict[str, Tensor]
APART = (
    "is another one than its peers have. Each reduction must be of the same parameter on all "
    "ranks: reduce in the same order everywhere."
)
# Two layers of the first have the same shape: mixed up they would still fit.
MODELS = (partial(net, (4, 5, 5, 5, 3)), partial(net, (4, 7, 7, 7, 3), bias=False, norm=True))


def _weights(model: nn.Module) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@graded(
    f"{REAL}, with {len(MODELS)} models, every gradient is the whole batch's in one process, up to "
    f"rounding, in {STEPS} steps. The ranks send what an all-reduce of every gradient takes, in no "
    "more messages. Fewer and larger calls would be faster, which is what buckets are for.",
    lambda: [(make,) for make in MODELS],
    lambda make: layers(*make.args) + " and norms" * ("norm" in make.keywords),
    instead="minidist's collectives",
    hints=HINTS,
)
def by_hand(
    function: Callable[[nn.Module], object], make: Callable[..., nn.Module]
) -> Iterator[Check]:
    """Grade function(model), which must make replicas of models that start apart on the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = make(seed=rank)  # not the same weights everywhere
    with without_wrappers("minidist's collectives"), minidist.record() as log:
        function(model)
    start, sent, found = _weights(model), [Traffic.of(log)], list[Tensors]()
    for step in range(STEPS):
        with minidist.record() as log:
            found.append(gradients(model, step, rank, ranks))
        sent.append(Traffic.of(log))
        if missing := [name for name in start if name not in found[-1]]:
            raise Wrong(f"{missing[0]} has no gradient after backward {step + 1} of {STEPS}.")
    same = [{name: alike(each) for name, each in own.items()} for own in found]
    alone = make(seed=0)
    end, wanted = _weights(model), _weights(alone)
    for name, right in wanted.items():
        yield not start[name].equal(right) and (
            f"the {name} with which training starts is not rank 0's. Replicas that start apart "
            "stay apart: broadcast every parameter first."
        )
        yield not end[name].equal(right) and (
            f"backward has changed {name} itself. The hook is handed the parameter, not its "
            "gradient: reduce parameter.grad."
        )
    for step, (own, agree) in enumerate(zip(found, same, strict=True)):
        alone_on, whole = (gradients(alone, step, of, ranks) for of in (rank, None))
        for name, right in whole.items():
            slips = averages(own[name], right, alone_on[name], ranks)
            what = f"in step {step + 1} of {STEPS}, the gradient of {name}"
            wrong = off(what, own[name], right, slips, OFF if agree[name] else APART)
            yield wrong + " Is there a hook on every parameter, and does it wait?" * (
                "own:" in wrong
            )
    size, many = sum(tensor.nbytes for tensor in wanted.values()), len(wanted)
    yield Cost(
        sent[0], (ranks - 1) * size, many * ranks, "the replicas are alike", shared=False,
        advice="Every parameter must reach each of the other ranks once.",
    )  # fmt: skip
    for each in sent[1:]:
        yield Cost(
            each, 2 * (ranks - 1) * size, 2 * (ranks - 1) * many, "the gradients are right",
            advice="An all-reduce of each gradient does it.",
        )  # fmt: skip


@Exercise
def buckets() -> Table:
    """Grade function(sizes, first, cap): the parameters' numbers in each bucket, in bytes."""
    models = [([4, 4, 4, 4], 4, 8), ([1, 2, 3, 4, 5, 6], 6, 6), ([10, 1, 1, 1], 1, 2)]
    models += [([1, 1, 1, 10], 2, 3), ([7], 1, 25), ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 1, 10)]
    models += [([1] * 40, 1, 25)]
    draw = draws(14)
    models += [([draw.randrange(1, 30) for _ in range(17)], draw.randrange(1, 9), 40)]
    models += [([draw.randrange(1, 9) for _ in range(50)], 3, draw.randrange(9, 30))]

    def too_small(sizes: list[int], first: int, cap: int) -> list[list[int]]:
        """Closed before a parameter would make it larger than the cap."""
        made, room = [[len(sizes) - 1]], first - sizes[-1]
        for place in range(len(sizes) - 2, -1, -1):
            if sizes[place] > room:
                made.append([])
                room = cap
            made[-1].append(place)
            room -= sizes[place]
        return made

    return Table(
        cases=[([MIB * n for n in sizes], MIB * first, MIB * cap) for sizes, first, cap in models],
        right=assign,
        told=lambda sizes, first, cap: (
            f"For parameters of {[size // MIB for size in sizes]} MiB, first {first // MIB}, cap "
            f"{cap // MIB}"
        ),
        read=list_of(list_of(whole)),
        expected="a list of lists of numbers",
        slips={
            "Backward begins at the last layer, so the last parameter is the first one that can "
            "travel: go through them in reverse.":
                lambda sizes, first, cap: [
                    [len(sizes) - 1 - place for place in bucket]
                    for bucket in assign(sizes[::-1], first, cap)
                ],
            "The first bucket has a cap of its own.": lambda sizes, _, cap: assign(sizes, cap, cap),
            "The cap of the first bucket is for the first alone.":
                lambda sizes, first, _: assign(sizes, first, first),
            "A bucket is closed when it has reached its cap, by the parameter that fills it.":
                too_small,
            "It is the bytes that fill a bucket, not the number of parameters.":
                lambda sizes, first, cap: assign([MIB] * len(sizes), first, cap),
        },
        otherwise=_why_buckets,
        solved="your buckets are DistributedDataParallel's for {cases} models. A bucket closes "
        "with the parameter that fills it, so it may be larger than the cap; only the last may be "
        "smaller, and it holds the first layers, whose gradients come last.",
    )  # fmt: skip


def _why_buckets(found: list[list[int]], sizes: list[int], first: int, cap: int) -> str:
    order = [index for bucket in found for index in bucket]
    every = list(range(len(sizes)))
    if sorted(order) != every:
        odd = next((i for i in every if order.count(i) != 1), max(order, default=0))
        return f"Parameter {odd} is in {order.count(odd)} buckets; expected each in one."
    if order != every[::-1]:
        return "Go through the parameters in reverse, as backward does."
    right = assign(sizes, first, cap)
    at = next(i for i, (own, its) in enumerate(zip(found, right, strict=False)) if own != its)
    limit, held = first if at == 0 else cap, sum(sizes[i] for i in found[at])
    if held < limit:
        return f"Bucket {at} is not full with {held // MIB} MiB: its cap is {limit // MIB}."
    return f"Bucket {at} was full before its last parameter came: it should have left."


Spans = list[tuple[float, float]]


@Exercise
def exposed() -> Table:
    """Grade function(computing, talking): seconds in which the rank only communicates."""
    cases: list[tuple[Spans, Spans]] = [
        ([(0, 10)], [(4, 12)]), ([(0, 10)], [(2, 5), (6, 8)]), ([(0, 10)], [(10, 14)]),
        ([(0, 4), (6, 10)], [(2, 9)]), ([(0, 10)], [(8, 13), (11, 15)]), ([], [(1, 4)]),
        ([(2, 5)], [(0, 7)]), ([(5, 9), (0, 6)], [(12, 14), (3, 10)]), ([(0, 3)], []),
        ([(0.5, 2.75)], [(1.25, 4.5)]),
    ]  # fmt: skip
    draw = draws(15)
    for _ in range(12):
        starts = [[draw.randrange(60) / 4 for _ in range(draw.randrange(6))] for _ in range(2)]
        first, second = ([(at, at + draw.randrange(1, 24) / 4) for at in each] for each in starts)
        cases.append((first, second))

    def quarters(spans: Spans) -> set[int]:
        return {at for at in range(88) if any(a <= at / 4 < b for a, b in spans)}

    def total(spans: Spans) -> float:
        return sum(end - start for start, end in spans)

    return numbers(
        "seconds",
        within=1e-6,
        cases=cases,
        right=lambda computing, talking: len(quarters(talking) - quarters(computing)) / 4,
        told="Computing in {} and communicating in {}",
        slips={
            "A difference of sums does not know what lies over what.":
                lambda computing, talking: max(0, total(talking) - total(computing)),
            "That is what is hidden.":
                lambda computing, talking: len(quarters(talking) & quarters(computing)) / 4,
            "That is all communication; some of it is hidden.": lambda _, talking: total(talking),
            "That is what computing lasts; ask what of communication lies outside.":
                lambda computing, _: total(computing),
            "A part of a second counts too.":
                lambda computing, talking: len(quarters(talking) - quarters(computing)) // 4,
        },
        otherwise=lambda *_: (
            "Cut each span of communication where computing starts or ends; count no second twice."
        ),
        solved="for all {cases} timelines. Only exposed communication makes a step longer; the "
        "rest is free, as long as it does not slow compute down.",
    )  # fmt: skip


def _why_factors(samples: list[int], given: Sequence[float]) -> str:
    """The rest of a verdict on factors with which the gradient is not the whole batch's."""
    ranks, there = len(samples), sum(map(bool, samples))
    shares = [count / sum(samples) for count in samples]
    slips = {
        f"They are {ranks} times too small: the average divides by N already.": shares,
        "The average divides by all N ranks, also by those that have no samples.":
            [there * share for share in shares],
        "With these, each rank counts alike, and not each sample.": [1.0] * ranks,
        "The average divides by N; a rank's share is of all samples, and no number of them.": [
            float(count) for count in samples
        ],
    }  # fmt: skip
    found = torch.tensor(given).double()
    fits = (why for why, slip in slips.items() if found.allclose(torch.tensor(slip).double()))
    why = next(fits, "Each sample of the batch has to count once: a rank with more, more.")
    shown, right = (
        ", ".join(f"{each:.4g}" for each in factors)
        for factors in (given, [ranks * share for share in shares])
    )
    return f"you say {shown}; the gradient of the whole batch takes {right}. {why}"


@formula
def factors(function: Callable[[list[int]], Sequence[float]]) -> str:
    """Grade function(samples): by what each rank multiplies its mean gradient, which is averaged.

    `samples` says how many samples each rank has.
    """
    cases = [[3, 1], [4, 4, 4], [5, 0, 1], [1, 2, 3, 4], [7], [9, 2, 0, 0, 6, 1, 8], [64, 48] * 8]
    draw = draws(94)
    cases += [[1, *(draw.randrange(9) for _ in range(draw.randrange(2, 12)))] for _ in range(4)]
    for samples in cases:
        generator = torch.Generator().manual_seed(sum(samples))
        parts = [torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in samples]
        case, expected = f"for {samples} samples ", "a factor for each rank"
        counts = list(samples)
        given = ask_as(list_of(number), expected, function, counts, case=case)
        if counts != samples:
            raise Wrong(f"{case}what you are given is changed; read it only.")
        if len(given) != len(samples):
            raise Wrong(f"{case}you return {len(given)} factors; expected {expected}.")
        means = [part.mean(0) if len(part) else part.sum(0) for part in parts]
        total = torch.as_tensor(sum(f * mean for f, mean in zip(given, means, strict=True)))
        right = torch.cat(parts).mean(0)
        if not torch.allclose(total / len(samples), right, atol=1e-9):
            raise Wrong(f"{case}{_why_factors(samples, given)}")
    return (
        f"for all {len(cases)} ways to split a batch, on 1 to 16 ranks. If all ranks have equally "
        "many samples, every factor is 1, so nobody misses them."
    )
