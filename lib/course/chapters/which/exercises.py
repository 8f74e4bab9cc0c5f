"""Graders of the chapter on choosing: what is right comes from schedules and their prices."""

from collections.abc import Callable, Iterable
from typing import Any

from course.ask.crossing import check_crossing
from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import Wrong, ask_as, draws, formula, many, whole
from minidist.errors import ScheduleError
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, seconds, switch
from minidist.schedule.replay import Contributors
from minidist.schedule.schedule import Schedule, Step
from minidist.schedule.traffic import replay, traffic

COUNTS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)  # numbers of segments
HINTS = {  # part of a ScheduleError → what to add
    "written twice": "A rank exchanges with one partner in a step.",
    "race": "Partners send at the same time, so both must reduce what comes.",
    "": "A partner's number differs in one bit: rank ^ d.",
}


@formula
def recursive_doubling(function: Callable[[int], Iterable[Step]]) -> str:
    """Grade function(ranks): the steps of recursive doubling, for a power of two of ranks."""
    for ranks in (4, 2, 8, 16, 1, 64, 128):
        case = f"With {many(ranks, 'rank')}: "
        steps = ask_as(_steps, "a list of Step", function, ranks, case=case)
        try:
            done = replay(Schedule("your schedule", "all_reduce", ranks, 1, steps.copy).check())
        except ScheduleError as error:
            hint = next(hint for part, hint in HINTS.items() if part in str(error))
            raise Wrong(f"{case}{error}. {hint}") from error
        for rank, (held,) in enumerate(done.state()):
            if held != tuple(range(ranks)):
                raise Wrong(f"{case}{_what_is_off(rank, held, ranks)}")
        needs = sum(1 for _ in algorithms.recursive_doubling_all_reduce(ranks))
        if len(steps) != needs:
            raise Wrong(
                f"{case}the sums are right, but you take {len(steps)} steps and recursive doubling "
                f"takes {needs}. In each step all ranks exchange, so that there is no way back."
            )
    return (
        "For powers of two from 1 to 128 ranks every rank ends with every part exactly once, after "
        "log2 N steps. That is the fewest there can be: in one step a rank's knowledge can at most "
        "double."
    )


def _steps(answer: Any) -> list[Step]:
    steps = list(answer)
    if not all(isinstance(step, Step) for step in steps):
        raise TypeError
    return steps


def _what_is_off(rank: int, held: Contributors, ranks: int) -> str:
    twice = sorted({part for part in held if held.count(part) > 1})
    if twice:
        return (
            f"rank {rank} ends with the part of rank {twice[0]} counted {held.count(twice[0])} "
            "times. Exchange with a rank that has none of the parts that you have."
        )
    missing = sorted(set(range(ranks)) - set(held))
    why = "Is every exchange reduced, and not overwritten?" if rank not in held else (
        "Do the distances go on doubling up to N / 2, and does every rank send?"
    )  # fmt: skip
    return f"rank {rank} ends without the part of rank {missing[0]}. {why}"


@formula
def crossing(function: Callable[[int, float, float], float]) -> str:
    """Grade function(ranks, alpha, beta): the bytes at which the two doublings take the same."""
    ways = {
        "recursive doubling": algorithms.recursive_doubling_all_reduce,
        "halving-doubling": algorithms.halving_doubling_all_reduce,
    }
    why = (
        "One has log2 N steps of the whole tensor; the other 2 log2 N, in which a rank sends "
        "2(N - 1)/N of the tensor in all."
    )
    drawn = [1 << power for power in draws(4).sample(range(3, 11), 4)]
    for ranks in (8, 4, 64, *drawn):
        check_crossing(function, ranks, ways, above="halving-doubling", why=why)
    return (
        f"At your size both take the same time, for 4 to {max(64, *drawn):,} ranks and several "
        "links. With many ranks it comes close to alpha / beta, the bytes that a link carries "
        "while a message waits."
    )


@Exercise
def between_nodes() -> Table:
    """Grade function(ranks, local, nbytes): bytes that leave nodes in a hierarchical all-reduce."""
    draw = draws(5)
    drawn = [(local * draw.randrange(2, 9), local) for local in draw.sample(range(2, 12), 5)]
    clusters = [(32, 8), (8, 4), (12, 2), (6, 3), (4, 4), (5, 1), *drawn]

    def leaves(schedule: Schedule, local: int, size: int) -> int:
        return traffic(schedule, size, 1, local).between_nodes

    def wire(ranks: int, local: int, size: int) -> int:
        return 2 * (ranks // local - 1) * size

    return numbers(
        within=0.5,
        cases=[(ranks, local, ranks * draw.randrange(100, 1000)) for ranks, local in clusters],
        right=lambda ranks, *how: leaves(
            algorithms.hierarchical_all_reduce(ranks, local=how[0]), *how
        ),
        told="For {} ranks in nodes of {} and {} bytes",
        slips={
            "That is what the flat ring sends between nodes.":
                lambda ranks, *how: leaves(algorithms.ring_all_reduce(ranks), *how),
            "That is what one node sends; add up all nodes.":
                lambda ranks, local, size: wire(ranks, local, size) / (ranks // local),
            "That is what one rank sends; add up all ranks.":
                lambda ranks, local, size: wire(ranks, local, size) / ranks,
            "That is one phase; the all-gather between nodes sends as much again.":
                lambda ranks, local, size: wire(ranks, local, size) / 2,
            "Each rank of a node sends only its own slice of the sum.":
                lambda ranks, local, size: wire(ranks, local, size) * local,
            "That is all that is sent; not all of it leaves a node.":
                lambda ranks, local, size: 2 * (ranks - 1) * size,
        },
        solved="for {cases} clusters: the simulator counts the same. Only the number of nodes "
        "matters: to the network a node is one rank, whose tensor its ranks carry in slices.",
    )  # fmt: skip


@formula
def segments(function: Callable[[int, int, float, float], int]) -> str:
    """Grade function(ranks, nbytes, alpha, beta): how many segments a chain should cut into."""
    draw = draws(6)
    cases = [(8, 1 << 20), (4, 1 << 22), (12, 1 << 19), (8, 1 << 10)]
    for ranks, nbytes in cases:
        _check_segments(function, ranks, nbytes, Link(1e-5, 1e-10))
    drawn = [(draw.randrange(6, 15), 1 << draw.randrange(20, 23)) for _ in range(4)]
    for ranks, nbytes in drawn:
        alpha = draw.uniform(1e-6, 1e-4)
        _check_segments(function, ranks, nbytes, Link(alpha, alpha * draw.uniform(3e-6, 1e-5)))
    return (
        f"In {len(cases + drawn)} cases none of the {len(COUNTS)} counts that were tried is more "
        "than 5% faster than yours. Four times the bytes want twice the segments: the best "
        "count grows with the root of the size."
    )


def _check_segments(function: Callable[..., int], ranks: int, nbytes: int, link: Link) -> None:
    case = f"For {ranks} ranks, {nbytes} bytes, alpha {link.alpha:g} s, beta {link.beta:g} s/byte: "
    expected = "a whole number of segments, 1 or more"
    args = ranks, nbytes, link.alpha, link.beta
    count = ask_as(whole, expected, function, *args, case=case)
    if count < 1:
        raise Wrong(f"{case}you say {count}; expected {expected}.")
    if count > 1000:
        raise Wrong(f"{case}you say {count:g}: each step would pay alpha for very few bytes.")

    def took(count: int) -> float:
        return seconds(algorithms.chain_all_reduce(ranks, segments=count), nbytes, switch(link))

    tried = {each: took(each) for each in COUNTS}
    best = min(tried, key=tried.__getitem__)
    own = took(count)
    if own > 1.05 * tried[best]:
        text = "more" if best > count else "fewer"
        raise Wrong(
            f"{case}with your {count} segments it takes {own * 1e6:.0f} us, with {best} only "
            f"{tried[best] * 1e6:.0f}: try {text}. About 2N + S steps of alpha + 2 beta s / S; "
            "where is that least?"
        )
