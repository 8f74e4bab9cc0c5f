"""Graders of the exercises that build one collective from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist

import minidist
from course.graders.verdict import Wrong, ask, grader
from course.sandbox.ranks import compared
from course.sandbox.threads import Endless, Failed, Mismatch, Rank, Threads
from minidist.schedule import algorithms
from minidist.schedule.schedule import Collective, Schedule
from minidist.schedule.simulate import Contributors, Replay, goal, replay, start

__all__ = ["all_gather", "names", "pictures", "reduce_scatter"]

Broadcast = Callable[[torch.Tensor, int], object]
AllToAll = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]

KINDS: tuple[Collective, ...] = get_args(Collective)
UNTOUCHED = -1.0  # in every element of a tensor that is to be written


@grader
def all_gather(function: Callable[[list[torch.Tensor], torch.Tensor, int, Broadcast], None]) -> str:
    """Grade function(parts, mine, rank, broadcast): parts[r] must become rank r's `mine`.

    First between threads, for 4 ranks and for other numbers of them; then once on real ranks.
    """
    for ranks in (4, 2, 3, 1):
        _try_all_gather(function, ranks)

    def work() -> tuple[bool, int, int]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mine, parts, theirs = torch.randn(1000), *torch.full((2, ranks, 1000), UNTOUCHED)
        with minidist.record() as by_broadcasts:
            function(list(parts), mine, rank, minidist.broadcast)
        with minidist.record() as at_once:
            minidist.all_gather(list(theirs), mine)
        return torch.equal(parts, theirs), _bytes(by_broadcasts), _bytes(at_once)

    sent, directly = _bytes_sent(work, "minidist.all_gather")
    return (
        "right for 1 to 4 ranks, and on 4 real processes the result is that of "
        f"minidist.all_gather. Your broadcasts moved {sent} bytes in all, all_gather {directly}: "
        "each part has to reach every other rank once, either way. But broadcasts take turns, "
        "while in one all-gather all ranks can send at the same time."
    )


def _try_all_gather(function: Callable[..., None], ranks: int) -> None:
    where = f"With {ranks} ranks: "
    mine = torch.arange(ranks).repeat_interleave(6).view(ranks, 2, 3).float()  # filled by rank
    parts = torch.full((ranks, ranks, 2, 3), UNTOUCHED)

    def body(rank: int, calls: Rank) -> None:
        function(list(parts[rank]), mine[rank], rank, calls.broadcast)

    made = _run(ranks, body, where)
    for rank in range(ranks):
        for src in range(ranks):
            held = set(parts[rank, src].flatten().tolist())
            if held == {UNTOUCHED}:
                raise Wrong(
                    f"{where}on rank {rank} nothing was written into parts[{src}]. A broadcast "
                    f"carries what the root has in its tensor; write into parts[...] in place."
                )
            if held != {float(src)}:
                raise Wrong(
                    f"{where}on rank {rank} parts[{src}] holds {_whose(held, 'rank ')}, "
                    f"expected rank {src}'s `mine`."
                )
    if not torch.equal(mine[:, 0, 0], torch.arange(ranks).float()):
        raise Wrong(f"{where}`mine` was overwritten; it is an input.")
    if made != ranks:
        raise Wrong(f"{where}it took {made} broadcasts; {ranks} are enough.")


def _whose(held: set[float], what: str) -> str:
    if UNTOUCHED in held:
        return "something unwritten"
    return "a mixture" if len(held) > 1 else f"{what}{int(held.pop())}'s"


@grader
def reduce_scatter(
    function: Callable[[torch.Tensor, list[torch.Tensor], AllToAll], None],
) -> str:
    """Grade function(output, inputs, all_to_all), where `inputs[d]` is this rank's part for rank d.

    `output` must become the sum of all ranks' parts for this one.
    """
    for ranks in (4, 2, 3, 1):
        _try_reduce_scatter(function, ranks)

    def work() -> tuple[bool, int, int]:
        ranks = dist.get_world_size()
        inputs = torch.randn(ranks, 1000)
        mine, theirs = torch.full((2, 1000), UNTOUCHED)
        with minidist.record() as by_exchange:
            function(mine, list(inputs), minidist.all_to_all)
        with minidist.record() as at_once:
            minidist.reduce_scatter(theirs, list(inputs))
        return torch.allclose(mine, theirs, atol=1e-5), _bytes(by_exchange), _bytes(at_once)

    sent, directly = _bytes_sent(work, "minidist.reduce_scatter")
    return (
        "right for 1 to 4 ranks, and on 4 real processes the sums are those of "
        f"minidist.reduce_scatter. Your way moved {sent} bytes in all, reduce_scatter {directly}. "
        "But every rank had to hold all N parts before it could add them; a ring adds each part "
        "as it comes."
    )


def _try_reduce_scatter(function: Callable[..., None], ranks: int) -> None:
    where = f"With {ranks} ranks: "
    # Block s→d is 1 at place (s, d) and 0 elsewhere, so that a sum shows what is in it.
    blocks = torch.eye(ranks * ranks).view(ranks, ranks, ranks * ranks)
    inputs, outputs = blocks.clone(), torch.full((ranks, ranks * ranks), UNTOUCHED)

    def body(rank: int, calls: Rank) -> None:
        function(outputs[rank], list(inputs[rank]), calls.all_to_all)

    made = _run(ranks, body, where)
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
    if made != 1:
        raise Wrong(f"{where}it took {made} calls of all_to_all; one is enough.")


def _blocks(output: torch.Tensor, ranks: int) -> str:
    """A sum of blocks spelled out; "something else" if it is none."""
    times = output.tolist()
    if any(n < 0 or n != int(n) for n in times):
        return "what was in it before, too"
    parts = [f"{i // ranks}→{i % ranks}" for i, n in enumerate(times) for _ in range(int(n))]
    return " + ".join(parts) if 0 < len(parts) <= 2 * ranks else f"{len(parts)} blocks"


def _run(ranks: int, body: Callable[[int, Rank], None], where: str) -> int:
    """Run it on threads; return how many collective calls they made."""
    threads = Threads(ranks)
    try:
        threads.run(body)
    except Failed as failed:
        raise Wrong(f"{where}{failed}.") from failed
    except (Mismatch, Endless) as error:
        raise Wrong(f"{where}{error}") from error
    return len(threads.made)


def _bytes_sent(work: Callable[[], tuple[bool, int, int]], twin: str) -> tuple[int, int]:
    """Run it on 4 real ranks; return the bytes that they sent in all, this way and by the twin."""
    results = compared(work, 4, f"the result differs from {twin}'s")
    mine, theirs = (sum(column) for column in zip(*results, strict=True))
    return mine, theirs


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


@grader
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
        f"all {len(_drawn())}. Two of them are mirror images: read a gather backwards and it is a "
        "scatter. A broadcast read backwards is a reduce, but for the adding."
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
