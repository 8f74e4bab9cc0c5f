"""Every algorithm, proven by replay for every number of ranks that one would try by hand."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from minidist.errors import ScheduleError
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, seconds, switch
from minidist.schedule.schedule import Schedule, spread
from minidist.schedule.traffic import replay, traffic
from tests.support.refusals import all_refused
from tests.support.schedules import step_of

EVERY: list[Callable[..., Schedule]] = [
    each for name, each in inspect.getmembers(algorithms, inspect.isfunction) if name != "segments"
]


def options(algorithm: Callable[..., Schedule], ranks: int) -> list[dict[str, int]]:
    """What it may be called with besides the number of ranks."""
    values: dict[str, Sequence[int]] = {
        "root": range(ranks) if ranks < 10 else (0, 1, ranks // 2, ranks - 1),
        "by": (-34, -2, -1, 0, 2, 7, 33, 1),
        "local": [size for size in range(1, ranks + 1) if ranks % size == 0],
        "segments": (1, 2, 3),
    }
    names = values.keys() & inspect.signature(algorithm).parameters
    return [{name: value} for name in names for value in values[name]] or [{}]


def keeps_its_promise(schedule: Schedule) -> bool:
    try:
        done = replay(schedule.check())
    except ScheduleError:
        return False
    return done.right() == done.wanted


def everything(ranks: int) -> Iterator[Schedule]:
    """Every algorithm over `ranks` ranks, with the last of its options; and nodes of every size."""
    for algorithm in EVERY:
        given = options(algorithm, ranks)
        for each in given if algorithm is algorithms.hierarchical_all_reduce else given[-1:]:
            yield algorithm(ranks, **each)


@pytest.mark.claim("B6")
def test_postcondition_for_1_to_33_ranks() -> None:
    """With every option: all or some roots, shifts, sizes of nodes, numbers of segments."""
    wrong = []
    for algorithm, ranks in product(EVERY, range(1, 34)):
        for given in options(algorithm, ranks):
            schedule = algorithm(ranks, **given)
            asked = given.get("root", 0), given.get("by", 0)
            if not keeps_its_promise(schedule) or (schedule.root, schedule.by) != asked:
                wrong.append(f"{algorithm.__name__}, {ranks} ranks, {given}")
    assert not wrong, "\n".join(wrong)


def test_no_ranks_are_refused() -> None:
    some = set(EVERY) - {algorithms.hierarchical_all_reduce}
    rows = [(partial(each, 0), "ranks must be at least 1, got 0") for each in some]
    all_refused(rows, ValueError)


def test_65536_ranks_are_outlined_and_priced_by_a_few_steps() -> None:
    ranks, link = 65536, Link(10e-6, 1 / 25e9)
    ring = algorithms.ring_all_reduce(ranks)
    assert [times for _, times in ring.outline()] == [65535] * 2
    layered = algorithms.hierarchical_all_reduce(ranks, local=8)
    assert [times for _, times in layered.outline()] == [7, 8191, 8191, 7]
    price = 2 * (ranks - 1) * (link.alpha + link.beta * 1e9 / ranks)
    assert seconds(ring, 1e9, switch(link)) == pytest.approx(price)


BLOCK = 512  # chunks that are proven at once


def prove_all_reduce(schedule: Schedule, block: int = BLOCK) -> None:
    """Prove that every rank ends with every rank's part of every chunk exactly once.

    The same replay on bit sets, which are integers here, for thousands of ranks: chunks never mix,
    so they are proven `block` at a time, in about ranks x block x ranks / 7 bytes of memory. The
    schedule must have passed `check()`.

    Raises ScheduleError if a part is missing in the end, or would be counted twice.
    """
    n, name = schedule.ranks, schedule.name
    own, everyone = [1 << rank for rank in range(n)], (1 << n) - 1
    for low in range(0, schedule.chunks, block):
        held = np.array([own] * min(block, schedule.chunks - low), dtype=np.object_)
        for number, step in enumerate(schedule):
            message, chunk = spread(step)
            near = np.flatnonzero((chunk >= low) & (chunk < low + block))
            message, chunk = message[near], chunk[near] - low
            src, dst, reduce = step.src[message], step.dst[message], step.reduce[message]
            carried, kept = held[chunk, src], held[chunk, dst]
            kept[~reduce] = 0
            for again in np.flatnonzero(carried & kept):
                raise ScheduleError(
                    f"{name}, step {number + 1}: rank {dst[again]} would count a part of chunk "
                    f"{low + chunk[again]} twice"
                )
            held[chunk, dst] = carried | kept
        for chunk, rank in np.argwhere(held != everyone):
            raise ScheduleError(
                f"{name}: rank {rank} ends without every part of chunk {low + chunk}"
            )


def test_bit_sets_agree_with_the_replay() -> None:
    for ranks, block in product((1, 2, 3, 21, 64, 65), (7, BLOCK)):
        for schedule in everything(ranks):
            if schedule.collective == "all_reduce":
                prove_all_reduce(schedule, block)
    first, gather = algorithms.ring_reduce_scatter(5, first=0), algorithms.ring_all_gather(5)
    astray, twice = (first.then(each, "not one", "all_reduce") for each in (gather, first))
    rows = [
        (partial(prove_all_reduce, astray), "ends without every part of chunk"),
        (partial(prove_all_reduce, twice), r"would count a part of chunk \d twice"),
    ]
    all_refused(rows, ScheduleError)


@pytest.mark.claim("B6")
def test_thousands_of_ranks_count_every_part_once() -> None:
    prove_all_reduce(algorithms.ring_all_reduce(2048))
    prove_all_reduce(algorithms.tree_all_reduce(4096).check())
    prove_all_reduce(algorithms.recursive_doubling_all_reduce(4095).check())
    for ranks in (4095, 4096):
        prove_all_reduce(algorithms.double_tree_all_reduce(ranks, segments=2).check())


MUTATED = [
    algorithms.ring_all_reduce(4),
    algorithms.tree_broadcast(4, root=1),
    algorithms.direct_gather(5, root=2),
    algorithms.direct_reduce_scatter(4),
    algorithms.pairwise_all_to_all(3),
    algorithms.doubling_all_gather(5),
    algorithms.halving_doubling_all_reduce(5),
    algorithms.chain_all_reduce(3, segments=2),
    algorithms.double_tree_all_reduce(3),
]


def mutants(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with one field of one message changed, in every possible way."""
    ranks, chunks = range(schedule.ranks), range(schedule.chunks)
    fields = {"src": ranks, "dst": ranks, "chunk": chunks, "reduce": (False, True)}
    steps = [list(step) for step in schedule]
    for number, step in enumerate(steps):
        for index, send in enumerate(step):
            for field, values in fields.items():
                for value in (v for v in values if v != getattr(send, field)):
                    changed = [*step[:index], send._replace(**{field: value}), *step[index + 1 :]]
                    every = [*steps[:number], changed, *steps[number + 1 :]]
                    arrays = list(map(step_of, every))
                    yield replace(schedule, make_steps=arrays.copy, alike=0, phases=())


def test_no_mutant_has_both_the_state_and_the_traffic_of_the_schedule() -> None:
    """The final state catches most mutants, and the bytes that a rank sends and gets the others."""

    def bytes_of(schedule: Schedule) -> list[list[int]]:
        moved = traffic(schedule, schedule.chunks)
        return [moved.sent_bytes.tolist(), moved.received_bytes.tolist()]

    for schedule in MUTATED:
        everyone, right = list(mutants(schedule)), bytes_of(schedule)
        survivors = [mutant for mutant in everyone if keeps_its_promise(mutant)]
        assert len(survivors) < len(everyone) / 5, f"{schedule.name}: the state catches too few"
        alike = [list(map(list, mutant)) for mutant in survivors if bytes_of(mutant) == right]
        assert not alike, f"{schedule.name}: {alike}"
