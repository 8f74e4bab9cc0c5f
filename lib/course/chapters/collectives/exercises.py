"""Graders of the exercises that build one collective from another."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import minidist
from course.ask.ranks import Check, Cost, Traffic, graded
from course.ask.verdict import Wrong, ask, draws, formula
from minidist.schedule import algorithms
from minidist.schedule.replay import Contributors, Replay, goal, start
from minidist.schedule.schedule import Collective, Schedule
from minidist.schedule.traffic import replay

Function = Callable[..., object]

KINDS: tuple[Collective, ...] = get_args(Collective)
NUMBERS = (4, 2, 3, 1, *sorted(draws(12).sample(range(5, 9), 2)))  # ranks in each question
RANKS = f"{', '.join(map(str, sorted(NUMBERS)[:-1]))} and {max(NUMBERS)}"
MOST = 100  # calls of a rank
UNTOUCHED = -1.0  # in every element of a tensor that is to be written


def _checked(
    function: Function, call: Function, given: Tensor, args: Sequence[Any], calls: int, least: int
) -> list[Check]:
    """Run function(*args, call), which should leave `given` as it is; whether and how it did.

    With so many calls, and so many bytes in all.
    """
    name, before, made = call.__name__, given.clone(), [0]

    def counted(*args: Any) -> None:
        made[0] += 1
        if made[0] > MOST:
            raise Wrong(f"your function makes call after call of {name}.")
        call(*args)

    with minidist.record() as log:
        function(*args, counted)
    minidist.barrier()  # a rank that has made fewer calls meets the others here
    enough = "one is enough" if calls == 1 else f"{calls} are enough"
    return [
        not given.equal(before) and "the input was changed; read it only.",
        made[0] != calls and (
            f"the result is right, in {made[0]} calls of {name}; {enough}. Use {name} and nothing "
            "else."
        ),
        Cost(Traffic.of(log), least, MOST**2, "the result is right", shared=False,
             advice=f"What do the calls of {name} move that nobody needs?"),
    ]  # fmt: skip


@graded(
    f"for {RANKS} real processes. Your broadcasts moved as many bytes as one all_gather: each part "
    "has to reach every other rank once, either way. But broadcasts follow one another, while in "
    "an all-gather all ranks can send at the same time.",
    instead="`broadcast`",
    worlds=NUMBERS,
)
def all_gather(function: Function) -> Iterator[Check]:
    """Grade function(parts, mine, rank, broadcast): parts[r] must become rank r's `mine`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    draw = draws(ranks)
    values = [number + 0.5 for number in draw.sample(range(2, 1000), ranks)]
    shape = [draw.randrange(2, 9) for _ in range(draw.randrange(1, 4))]
    within = torch.rand(shape, generator=torch.Generator().manual_seed(draw.randrange(999))) / 4
    mine = values[rank] + within  # the whole numbers and halves in it say whose it is
    parts = torch.full((ranks, *shape), UNTOUCHED)
    args, least = (list(parts), mine, rank), (ranks - 1) * parts.nbytes
    checks = _checked(function, minidist.broadcast, mine, args, ranks, least)
    for src, part in enumerate(parts):
        yield bool((part == UNTOUCHED).all()) and (
            f"nothing was written into parts[{src}]. A broadcast carries what the root has in its "
            "tensor; write into parts[...] in place."
        )
        wrong = f"parts[{src}] holds {_whose(part, values, within)}, expected rank {src}'s `mine`"
        yield not part.equal(values[src] + within) and f"{wrong}, of shape {shape}."
    yield from checks


def _whose(held: Tensor, values: list[float], within: Tensor) -> str:
    if (held == UNTOUCHED).any():
        return "something unwritten"
    for rank, value in enumerate(values):
        if held.equal(value + within):
            return f"rank {rank}'s"
    alike = held.min() == held.max()
    return f"{held.flatten()[0]:g} everywhere" if alike else "numbers that are no rank's"


@graded(
    f"for {RANKS} real processes. Your way moved as many bytes as one reduce_scatter. But every "
    "rank had to hold all N parts before it could add them; a ring adds each part as it arrives.",
    instead="`all_to_all`",
    worlds=NUMBERS,
)
def reduce_scatter(function: Function) -> Iterator[Check]:
    """Grade function(output, inputs, all_to_all), where `inputs[d]` is this rank's part for rank d.

    `output` must become the sum of all ranks' parts for this one.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Part s→d is 1 at place (s, d) and 0 elsewhere, so that a sum shows what is in it; and it ends
    # with numbers in all parts, of both signs, or a maximum would do for a sum.
    tags, draw = torch.eye(ranks * ranks).view(ranks, ranks, ranks * ranks), draws(ranks + 20)
    size = ranks, ranks, draw.randrange(3, 9)
    numbers = torch.tensor([draw.randrange(-9, 10) for _ in range(math.prod(size))]).view(size)
    parts = torch.cat([tags, numbers], dim=-1)
    wanted, inputs = parts[:, rank].sum(0), parts[rank].clone()
    output = torch.full_like(wanted, UNTOUCHED)
    args, least = (output, list(inputs)), (ranks - 1) * parts[0].nbytes
    checks = _checked(function, minidist.all_to_all, inputs, args, 1, least)
    untouched = bool((output == UNTOUCHED).all())
    yield untouched and "nothing was written into `output`, in place."
    found, right = (_blocks(each[: ranks**2], ranks) for each in (output, wanted))
    yield found != right and (
        f"`output` holds {found}, expected {right} (s→d is rank s's part for rank d)."
    )
    ends, sums = (each[ranks**2 :].int().tolist() for each in (output, wanted))
    yield not output.equal(wanted) and (
        f"`output` has something of every part, but ends with {ends}, expected {sums}: where "
        "several parts have numbers, add them."
    )
    yield from checks


def _blocks(output: Tensor, ranks: int) -> str:
    """A sum of blocks spelled out, or what it is if it is none."""
    times = output.tolist()
    if any(n < 0 or n != int(n) for n in times):
        return "what was in it before, too"
    parts = [f"{i // ranks}→{i % ranks}" for i, n in enumerate(times) for _ in range(int(n))]
    if not parts:
        return "no rank's part"
    return " + ".join(parts) if len(parts) <= 2 * ranks else f"{len(parts)} parts"


DRAWN = {
    "A": algorithms.direct_gather(4, root=2),
    "B": algorithms.ring_reduce_scatter(4),
    "C": algorithms.tree_broadcast(4, root=1),
    "D": algorithms.pairwise_all_to_all(4),
    "E": algorithms.direct_scatter(4, root=3),
    "F": algorithms.tree_reduce(4, root=3),
}


def pictures() -> dict[str, Replay]:
    """Six collectives over four ranks, under letters: for `figures.before_after` and `names`."""
    return {letter: replay(schedule) for letter, schedule in DRAWN.items()}


@formula
def names(function: Callable[[], Mapping[str, str]]) -> str:
    """Grade function(): letter of each picture → torch.distributed's name of the collective."""
    answers = ask(function)
    if not isinstance(answers, Mapping):
        raise Wrong(f"you return {answers!r}; expected a dict of letters and names.")
    for letter, schedule in DRAWN.items():
        answer, kind = str(answers.get(letter, "nothing")), schedule.collective
        if answer not in KINDS:
            raise Wrong(f"picture {letter}: {answer} is none of {', '.join(sorted(KINDS))}.")
        if (answer == "all_to_all") != (kind == "all_to_all"):
            raise Wrong(
                f"picture {letter} is {'' if kind == 'all_to_all' else 'not '}an all_to_all: "
                "only there does each rank have a different block for every rank."
            )
        if answer != kind:
            _find_difference(letter, answer, schedule)
    return (
        f"for all {len(DRAWN)} pictures. Some are mirror images: a gather read backwards is a "
        "scatter, and a broadcast read backwards is a reduce, if the receiver adds."
    )


def _find_difference(letter: str, answer: Collective, schedule: Schedule) -> None:
    ranks, chunks = schedule.ranks, schedule.chunks
    shown = replay(schedule)
    sides = {
        "before": (shown.start, start(answer, ranks, chunks, schedule.root)),
        "after": (shown.goal, goal(answer, ranks, chunks, schedule.root, by=1)),
    }
    for when, (seen, promised) in sides.items():
        for rank, chunk in np.ndindex(ranks, chunks):
            here, there = seen[rank][chunk] or (), promised[rank][chunk] or ()
            if here != there:
                raise Wrong(
                    f"picture {letter}: {when} the call rank {rank} has {_parts(here)} in column "
                    f"{chunk}. In {answer} it would have {_parts(there)} there."
                )


def _parts(who: Contributors) -> str:
    s = "s" if len(who) > 1 else ""
    return f"the part{s} of rank{s} {', '.join(map(str, who))}" if who else "nothing"
