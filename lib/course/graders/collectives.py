"""Graders of the exercises that build one collective from another."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, get_args
from unittest.mock import Mock

import numpy as np
import torch
import torch.distributed as dist

import minidist
from course.sandbox.forbidden import without_torch
from course.sandbox.ranks import compared
from course.sandbox.threads import Endless, Failed, Mismatch, Rank, Threads
from course.verdict import Grader, Wrong, alone, ask, formula
from minidist.schedule import algorithms
from minidist.schedule.schedule import Collective, Schedule
from minidist.schedule.simulate import Contributors, Replay, goal, replay, start

__all__ = ["all_gather", "names", "pictures", "reduce_scatter"]

Broadcast = Callable[[torch.Tensor, int], object]
AllToAll = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]

KINDS: tuple[Collective, ...] = get_args(Collective)
NUMBERS = "1, 2, 3, 4, 5 and 7"
UNTOUCHED = -1.0  # in every element of a tensor that is to be written


@Grader
def all_gather(function: Callable[[list[torch.Tensor], torch.Tensor, int, Broadcast], None]) -> str:
    """Grade function(parts, mine, rank, broadcast): parts[r] must become rank r's `mine`.

    First between threads, for 4 ranks and for other numbers of them; then once on real ranks.
    """
    alone(_each_number, _try_all_gather, function)

    def work() -> _Seen:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mine, parts, theirs = torch.randn(1000), *torch.full((2, ranks, 1000), UNTOUCHED)
        before, calls = mine.clone(), Mock(wraps=minidist.broadcast)
        with without_torch("`broadcast`"), minidist.record() as by_broadcasts:
            function(list(parts), mine, rank, calls)
        with minidist.record() as at_once:
            minidist.all_gather(list(theirs), before)
        same = torch.equal(parts, theirs) and torch.equal(mine, before)
        return _Seen(same, calls.call_count, _bytes(by_broadcasts), _bytes(at_once))

    sent = _on_ranks(work, 4, "broadcast", "minidist.all_gather")
    return (
        f"for {NUMBERS} ranks, and on 4 real processes the result is that of "
        f"minidist.all_gather. Your broadcasts moved {sent:,} bytes in all, and so did all_gather: "
        "each part has to reach every other rank once, either way. But broadcasts take turns, "
        "while in one all-gather all ranks can send at the same time."
    )


def _try_all_gather(function: Callable[..., None], ranks: int) -> None:
    where = f"With {ranks} ranks: "
    values = Random(ranks).sample(range(2, 1000), ranks)  # each rank's fills its part
    mine = torch.tensor(values).repeat_interleave(3 * ranks).view(ranks, 3, ranks).float()
    before, parts = mine.clone(), torch.full((ranks, ranks, 3, ranks), UNTOUCHED)

    def body(rank: int, calls: Rank) -> None:
        function(list(parts[rank]), mine[rank], rank, calls.broadcast)

    threads = _run(ranks, body, where)
    for rank in range(ranks):
        for src in range(ranks):
            held = set(parts[rank, src].flatten().tolist())
            if held == {UNTOUCHED}:
                raise Wrong(
                    f"{where}on rank {rank} nothing was written into parts[{src}]. A broadcast "
                    f"carries what the root has in its tensor; write into parts[...] in place."
                )
            if held != {float(values[src])}:
                raise Wrong(
                    f"{where}on rank {rank} parts[{src}] holds {_whose(held, values)}, "
                    f"expected rank {src}'s `mine`."
                )
    if not torch.equal(mine, before):
        raise Wrong(f"{where}`mine` was overwritten; it is an input.")
    _compare_cost(where, threads, "broadcast", ranks, ranks * (ranks - 1) * mine[0].nbytes)


def _compare_cost(where: str, threads: Threads, call: str, calls: int, least: int) -> None:
    made, moved = len(threads.made), threads.moved
    enough = "one is enough" if calls == 1 else f"{calls} are enough"
    if made != calls:
        raise Wrong(f"{where}the result is right, in {made} calls of {call}; {enough}.")
    if moved > least:
        raise Wrong(
            f"{where}the result is right, but the calls of {call} move {moved:,} bytes from rank "
            f"to rank; {least:,} are enough. What travels that nobody needs?"
        )


def _whose(held: set[float], values: list[int]) -> str:
    if UNTOUCHED in held:
        return "something unwritten"
    if len(held) > 1:
        return "a mixture"
    (value,) = held
    return f"rank {values.index(int(value))}'s" if value in values else f"{value:g} everywhere"


@Grader
def reduce_scatter(function: Callable[[torch.Tensor, list[torch.Tensor], AllToAll], None]) -> str:
    """Grade function(output, inputs, all_to_all), where `inputs[d]` is this rank's part for rank d.

    `output` must become the sum of all ranks' parts for this one.
    """
    alone(_each_number, _try_reduce_scatter, function)

    def work() -> _Seen:
        inputs = torch.randn(dist.get_world_size(), 1000)
        before, calls = inputs.clone(), Mock(wraps=minidist.all_to_all)
        mine, theirs = torch.full((2, 1000), UNTOUCHED)
        with without_torch("`all_to_all`"), minidist.record() as by_exchange:
            function(mine, list(inputs), calls)
        with minidist.record() as at_once:
            minidist.reduce_scatter(theirs, list(before))
        same = torch.allclose(mine, theirs, atol=1e-5) and torch.equal(inputs, before)
        return _Seen(same, calls.call_count, _bytes(by_exchange), _bytes(at_once))

    sent = _on_ranks(work, 1, "all_to_all", "minidist.reduce_scatter")
    return (
        f"for {NUMBERS} ranks, and on 4 real processes the sums are those of "
        f"minidist.reduce_scatter. Your way moved {sent:,} bytes in all, and so did "
        "reduce_scatter. But every rank had to hold all N parts before it could add them; a ring "
        "adds each part as it comes."
    )


def _try_reduce_scatter(function: Callable[..., None], ranks: int) -> None:
    where = f"With {ranks} ranks: "
    # Block s→d is 1 at place (s, d) and 0 elsewhere, so that a sum shows what is in it.
    blocks = torch.eye(ranks * ranks).view(ranks, ranks, ranks * ranks)
    inputs, outputs = blocks.clone(), torch.full((ranks, ranks * ranks), UNTOUCHED)

    def body(rank: int, calls: Rank) -> None:
        function(outputs[rank], list(inputs[rank]), calls.all_to_all)

    threads = _run(ranks, body, where)
    for rank, output in enumerate(outputs):
        if bool((output == UNTOUCHED).all()):
            raise Wrong(f"{where}on rank {rank} nothing was written into `output`, in place.")
        wanted = blocks[:, rank].sum(0)
        if not torch.equal(output, wanted):
            raise Wrong(
                f"{where}on rank {rank} `output` holds {_blocks(output, ranks)}, "
                f"expected {_blocks(wanted, ranks)} (s→d is rank s's part for rank d)."
            )
    if not torch.equal(inputs, blocks):
        raise Wrong(f"{where}`inputs` were overwritten; they are inputs.")
    _compare_cost(where, threads, "all_to_all", 1, ranks * (ranks - 1) * blocks[0, 0].nbytes)


def _blocks(output: torch.Tensor, ranks: int) -> str:
    """A sum of blocks spelled out; "something else" if it is none."""
    times = output.tolist()
    if any(n < 0 or n != int(n) for n in times):
        return "what was in it before, too"
    parts = [f"{i // ranks}→{i % ranks}" for i, n in enumerate(times) for _ in range(int(n))]
    return " + ".join(parts) if 0 < len(parts) <= 2 * ranks else f"{len(parts)} blocks"


def _each_number(attempt: Callable[..., None], function: Callable[..., None]) -> None:
    for ranks in (4, 2, 3, 1, 5, 7):
        attempt(function, ranks)


def _run(ranks: int, body: Callable[[int, Rank], None], where: str) -> Threads:
    """Run it on threads; return what they have done."""
    threads = Threads(ranks)
    try:
        threads.run(body)
    except Failed as failed:
        raise Wrong(f"{where}{failed}.") from failed
    except (Mismatch, Endless) as error:
        raise Wrong(f"{where}{error}") from error
    return threads


class _Seen(NamedTuple):
    """What one real rank has seen: the result, and what the learner's way and the twin cost."""

    right: bool
    calls: int
    sent: int
    directly: int


def _on_ranks(work: Callable[[], _Seen], calls: int, call: str, twin: str) -> int:
    """Run it on 4 real ranks; return the bytes that they sent in all."""
    found = compared(work, 4, f"the result differs from {twin}'s")
    (made, *_), sents, directs = zip(*found, strict=True)
    sent, directly = sum(sents), sum(directs)
    if (made, sent) != (calls, directly):
        raise Wrong(
            f"On 4 real processes the result is right, with {made} calls of {call} and {sent:,} "
            f"bytes; expected {calls} and {directly:,}. Use {call} and nothing else."
        )
    return int(sent)


def _bytes(log: Sequence[Any]) -> int:
    return sum(sent.nbytes for sent in log)


def pictures() -> dict[str, Replay]:
    """Six collectives over four ranks, under letters: for `figures.before_after` and `names`."""
    return {letter: replay(schedule) for letter, schedule in _drawn().items()}


def _drawn() -> dict[str, Schedule]:
    return {
        "A": algorithms.direct_gather(4, root=2),
        "B": algorithms.ring_reduce_scatter(4),
        "C": algorithms.tree_broadcast(4, root=1),
        "D": algorithms.pairwise_all_to_all(4),
        "E": algorithms.direct_scatter(4, root=3),
        "F": algorithms.tree_reduce(4, root=3),
    }


@formula
def names(function: Callable[[], Mapping[str, str]]) -> str:
    """Grade function(): letter of each picture → torch.distributed's name of the collective."""
    answers = ask(function)
    if not isinstance(answers, Mapping):
        raise Wrong(f"you return {answers!r}; expected a dict of letters and names.")
    for letter, schedule in _drawn().items():
        answer, kind = str(answers.get(letter, "nothing")), schedule.collective
        if answer not in KINDS:
            raise Wrong(f"picture {letter}: {answer} is none of {', '.join(sorted(KINDS))}.")
        if (answer == "all_to_all") != (kind == "all_to_all"):
            raise Wrong(
                f"picture {letter} is {'' if kind == 'all_to_all' else 'not '}an all_to_all: "
                "there, and only there, each rank brings another block for every rank."
            )
        if answer != kind:
            _find_difference(letter, answer, schedule)
    return (
        f"for all {len(_drawn())} pictures. Two of them are mirror images: read a gather backwards "
        "and it is a scatter. A broadcast read backwards is a reduce, but for the adding."
    )


def _find_difference(letter: str, answer: Collective, schedule: Schedule) -> None:
    ranks, chunks = schedule.ranks, schedule.chunks
    shown = replay(schedule)
    sides = {
        "before": (shown.start, start(answer, ranks, chunks, schedule.root)),
        "after": (shown.goal, goal(answer, ranks, chunks, schedule.root, by=1)),
    }
    for when, (seen, told) in sides.items():
        for rank, chunk in np.ndindex(ranks, chunks):
            here, there = seen[rank][chunk] or (), told[rank][chunk] or ()
            if here != there:
                raise Wrong(
                    f"picture {letter}: {when} the call rank {rank} has {_parts(here)} in column "
                    f"{chunk}. In {answer} it would have {_parts(there)} there."
                )


def _parts(who: Contributors) -> str:
    if not who:
        return "nothing"
    return f"the part{'s' if len(who) > 1 else ''} of rank{'s' if len(who) > 1 else ''} " + (
        ", ".join(map(str, who))
    )
