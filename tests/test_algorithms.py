"""Every algorithm, proven by replay for every number of ranks that one would try by hand."""

from collections.abc import Callable

import pytest

from minidist import algorithms
from minidist.schedule import Schedule, ScheduleError, Send, Step
from minidist.simulate import prove_all_reduce, replay, traffic

PLAIN: list[Callable[[int], Schedule]] = [
    algorithms.ring_reduce_scatter,
    algorithms.ring_all_gather,
    algorithms.ring_all_reduce,
    algorithms.naive_all_reduce,
    algorithms.tree_all_reduce,
]


def keeps_its_promise(schedule: Schedule) -> bool:
    done = replay(schedule.check())
    return done.right() == done.wanted


@pytest.mark.claim("B6")
@pytest.mark.parametrize("algorithm", PLAIN)
def test_postcondition_for_1_to_33_ranks(algorithm: Callable[[int], Schedule]) -> None:
    for ranks in range(1, 34):
        assert keeps_its_promise(algorithm(ranks)), ranks


def test_hierarchical_postcondition_for_every_way_to_make_nodes() -> None:
    for ranks in range(1, 34):
        for local in (size for size in range(1, ranks + 1) if ranks % size == 0):
            assert keeps_its_promise(algorithms.hierarchical_all_reduce(ranks, local=local))


def test_ranks_must_make_sense() -> None:
    for algorithm in PLAIN:
        with pytest.raises(ScheduleError, match="at least 1, got 0"):
            algorithm(0)
    with pytest.raises(ScheduleError, match="6 ranks cannot be split into nodes of 4"):
        algorithms.hierarchical_all_reduce(6, local=4)


def test_steps_of_each_algorithm() -> None:
    for ranks in range(1, 34):
        log = (ranks - 1).bit_length()
        assert traffic(algorithms.ring_all_reduce(ranks), 0).steps == 2 * (ranks - 1)
        assert traffic(algorithms.naive_all_reduce(ranks), 0).steps == 2 * (ranks - 1)
        assert traffic(algorithms.tree_all_reduce(ranks), 0).steps == 2 * log


def test_bit_sets_agree_with_the_replay() -> None:
    for ranks in (1, 2, 3, 64, 65):
        prove_all_reduce(algorithms.ring_all_reduce(ranks), block=7)
        prove_all_reduce(algorithms.tree_all_reduce(ranks))
    wrong_start = algorithms.ring_reduce_scatter(5, first=0).then(
        algorithms.ring_all_gather(5), "wrong start", "all_reduce"
    )
    with pytest.raises(ScheduleError, match="ends without every part of chunk"):
        prove_all_reduce(wrong_start)
    twice = algorithms.ring_reduce_scatter(5).then(
        algorithms.ring_reduce_scatter(5), "twice", "all_reduce"
    )
    with pytest.raises(ScheduleError, match=r"would count a part of chunk \d twice"):
        prove_all_reduce(twice)


def mutants(ranks: int) -> list[Schedule]:
    """The ring with one field of one message changed, in every possible way."""
    steps = [list(step) for step in algorithms.ring_all_reduce(ranks)]
    made = []
    for number, step in enumerate(steps):
        for index, send in enumerate(step):
            for field in ("src", "dst", "chunk", "reduce"):
                values = (False, True) if field == "reduce" else range(ranks)
                for value in (v for v in values if v != getattr(send, field)):
                    changed = [list(s) for s in steps]
                    changed[number][index] = send._replace(**{field: value})
                    made.append(_schedule(changed, ranks))
    return made


def _schedule(steps: list[list[Send]], ranks: int) -> Schedule:
    arrays = [Step.from_sends(step) for step in steps]
    return Schedule("mutant", "all_reduce", ranks, ranks, lambda: arrays)


def test_the_final_state_alone_lets_mutants_live_and_the_traffic_kills_them() -> None:
    right = traffic(algorithms.ring_all_reduce(4), 4)

    def traffic_differs(mutant: Schedule) -> bool:
        moved = traffic(mutant, 4)
        sent = (moved.sent_bytes == right.sent_bytes).all()
        received = (moved.received_bytes == right.received_bytes).all()
        neighbours = all((send.dst - send.src) % 4 == 1 for step in mutant for send in step)
        return not (sent and received and neighbours)

    def state_is_wrong(mutant: Schedule) -> bool:
        try:
            return not keeps_its_promise(mutant)
        except ScheduleError:
            return True

    everyone = mutants(4)
    assert len(everyone) == 240
    survivors = [mutant for mutant in everyone if not state_is_wrong(mutant)]
    assert survivors, "if the state were enough, there would be no need to look at the traffic"
    assert all(traffic_differs(mutant) for mutant in survivors)
