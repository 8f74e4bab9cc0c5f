"""Steps, messages and bytes of every algorithm against formulas that can be worked out by hand.

N is the number of ranks, P the largest power of two in it, all bytes are in chunks or in tensors.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from minidist.schedule import algorithms
from minidist.schedule.schedule import Schedule
from minidist.schedule.traffic import Traffic, traffic
from tests.schedule.test_proof import EVERY
from tests.support.cases import alike

RANKS = range(1, 34)
ROOMY = 12  # bytes in a chunk


def log(ranks: int) -> int:
    return (ranks - 1).bit_length()


def power(ranks: int) -> int:
    return 1 << (ranks.bit_length() - 1)


def folded(ranks: int) -> int:
    """Steps that fold ranks in, or out again."""
    return int(power(ranks) != ranks)


def moved(schedule: Schedule, local: int | None = None) -> Traffic:
    return traffic(schedule, schedule.chunks * ROOMY, 1, local)


def halving(ranks: int) -> int:
    """Chunks in and out of the first member if ranks are folded: it has two chunks in the end."""
    extra = ranks - power(ranks)
    kept = sum(d + min(d, extra) for d in (2**k for k in range(log(power(ranks)))))
    return ranks + (ranks - 2) + kept + 1 if extra else 2 * (ranks - 1)


# Steps; chunks in and out of the busiest rank; chunks that are sent, by all ranks together (None: a
# formula of its own would say no more). The whole tensor is 1 chunk, N, N^2, or P of them.
FORMULAS: dict[Callable[..., Schedule], Callable[[int], tuple[int, int, int | None]]] = {
    algorithms.chain_all_reduce: lambda n: (2 * (n - 1), 2 * min(2, n - 1), 2 * (n - 1)),
    algorithms.direct_gather: lambda n: (int(n > 1), n - 1, n - 1),
    algorithms.direct_reduce_scatter: lambda n: (n - 1, 2 * (n - 1), n * (n - 1)),
    algorithms.direct_scatter: lambda n: (int(n > 1), n - 1, n - 1),
    algorithms.doubling_all_gather: lambda n: (log(power(n)) + 2 * folded(n), halving(n), None),
    algorithms.halving_doubling_all_reduce: lambda n: (
        2 * log(power(n)) + 2 * folded(n),
        4 * (power(n) - 1) + 2 * power(n) * folded(n),
        2 * power(n) * (power(n) - 1) + 2 * (n - power(n)) * power(n),
    ),
    algorithms.halving_reduce_scatter: lambda n: (log(power(n)) + 2 * folded(n), halving(n), None),
    algorithms.naive_all_reduce: lambda n: (2 * (n - 1), 2 * (n - 1), 2 * (n - 1)),
    algorithms.naive_broadcast: lambda n: (n - 1, n - 1, n - 1),
    algorithms.pairwise_all_to_all: lambda n: (n - 1, 2 * (n - 1), n * (n - 1)),
    algorithms.recursive_doubling_all_reduce: lambda n: (
        log(power(n)) + 2 * folded(n),
        2 * (log(power(n)) + folded(n)),
        power(n) * log(power(n)) + 2 * (n - power(n)),
    ),
    algorithms.ring_all_gather: lambda n: (n - 1, 2 * (n - 1), n * (n - 1)),
    algorithms.ring_all_reduce: lambda n: (2 * (n - 1), 4 * (n - 1), 2 * n * (n - 1)),
    algorithms.ring_reduce_scatter: lambda n: (n - 1, 2 * (n - 1), n * (n - 1)),
    algorithms.ring_shift: lambda n: (int(n > 1), 2 * int(n > 1), n * (n > 1)),
    algorithms.tree_all_reduce: lambda n: (2 * log(n), 2 * log(n), 2 * (n - 1)),
    algorithms.tree_broadcast: lambda n: (log(n), log(n), n - 1),
    algorithms.tree_reduce: lambda n: (log(n), log(n), n - 1),
}
EVEN = {  # every rank sends and receives the same
    algorithms.direct_reduce_scatter,
    algorithms.pairwise_all_to_all,
    algorithms.ring_all_gather,
    algorithms.ring_all_reduce,
    algorithms.ring_reduce_scatter,
}


def test_each_algorithm_has_its_formulas() -> None:
    own = {algorithms.hierarchical_all_reduce, algorithms.double_tree_all_reduce}  # see below
    assert set(FORMULAS) == set(EVERY) - own


@pytest.mark.claim("A2", "A4", "A7", "B3", "B4")
def test_steps_and_bytes() -> None:
    wrong = []
    for algorithm, ranks in product(FORMULAS, RANKS):
        found, (steps, busiest, total) = moved(algorithm(ranks)), FORMULAS[algorithm](ranks)
        sent = found.sent_bytes.sum()
        got = found.steps, found.busiest / ROOMY, sent / ROOMY, found.received_bytes.sum()
        right = steps, busiest, sent / ROOMY if total is None else total, sent
        each = {*found.sent_bytes, *found.received_bytes}
        if got != right or (algorithm in EVEN and each != {busiest * ROOMY / 2}):
            wrong.append(f"{algorithm.__name__}, {ranks} ranks: {got}, expected {right}; {each}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.claim("A8")
def test_among_powers_of_two_halving_and_doubling_are_even() -> None:
    for algorithm in (
        algorithms.doubling_all_gather,
        algorithms.halving_reduce_scatter,
        algorithms.halving_doubling_all_reduce,
        algorithms.recursive_doubling_all_reduce,
    ):
        for ranks in (1, 2, 4, 8, 16, 32):
            found = moved(algorithm(ranks))
            assert len({*found.sent_bytes, *found.received_bytes}) == 1
            assert set(found.sent_messages) == {found.steps}
            tree = moved(algorithms.tree_all_reduce(ranks))
            assert ranks < 3 or len({*tree.sent_bytes, *tree.received_bytes}) > 1


def test_segments_cost_steps_and_no_bytes() -> None:
    found, right = {}, {}
    for segments, ranks in product((1, 3, 16), (2, 3, 8, 33)):
        chain = moved(algorithms.chain_all_reduce(ranks, segments=segments))
        found[segments, ranks] = chain.steps, *chain.sent_bytes.tolist()
        whole = segments * ROOMY
        steps = 2 * (ranks - 1) + segments - 1
        right[segments, ranks] = steps, whole, *[2 * whole] * (ranks - 2), whole
    alike(found, right)


def test_double_tree_shares_the_work() -> None:
    wrong = []
    for segments, ranks in product((1, 2, 5), RANKS):
        schedule = algorithms.double_tree_all_reduce(ranks, segments=segments)
        found, whole = moved(schedule), 2 * segments * ROOMY
        height = ranks.bit_length() - 1
        inside = {(send.dst, send.chunk // segments) for s in schedule for send in s if send.reduce}
        holds = {
            "steps": 2 * height <= found.steps <= 4 * height + 2 * (segments - 1),
            "most": found.sent_bytes.max() <= 2 * whole,
            "all": found.sent_bytes.sum() == 2 * (ranks - 1) * whole,
            "as much in as out": (found.sent_bytes == found.received_bytes).all(),
            "inside one tree at most": len({rank for rank, _ in inside}) == len(inside),
        }
        wrong += [f"{ranks} ranks, {segments=}: {name}" for name in holds if not holds[name]]
    assert not wrong, "\n".join(wrong)


def test_double_tree_gives_a_rank_one_message_each_way_a_step() -> None:
    for ranks in (2, 3, 7, 8, 21, 32, 33):
        for step in algorithms.double_tree_all_reduce(ranks, segments=4):
            for up in (True, False):
                for end in (step.src, step.dst):
                    assert np.bincount(end[step.reduce == up], minlength=1).max() <= 1


@pytest.mark.claim("B8")
def test_bytes_between_nodes() -> None:
    """Nodes of a power of two: how many tensors leave nodes, of all ranks together."""
    found, right = {}, {}
    for count, local in ((1, 4), (4, 1), (4, 8), (2, 2), (16, 8)):
        ranks, least = count * local, 2 * (count - 1)
        layered = algorithms.hierarchical_all_reduce(ranks, local=local)
        own = moved(layered, local)
        assert own.steps == 2 * (local - 1) + least
        assert set(own.sent_bytes) == {2 * (ranks - 1) * ROOMY}
        flat = moved(algorithms.ring_all_reduce(ranks), local)
        assert flat.between_nodes == (count > 1) * 2 * count * (ranks - 1) * ROOMY
        for schedule, tensors in (
            (layered, least),
            (algorithms.halving_doubling_all_reduce(ranks), least),  # far messages are small
            (algorithms.tree_all_reduce(ranks), least),
            (algorithms.chain_all_reduce(ranks, segments=3), least),
            (algorithms.recursive_doubling_all_reduce(ranks), ranks * log(count)),
            (algorithms.naive_all_reduce(ranks), 2 * (ranks - local)),
        ):
            found[schedule.name, count, local] = moved(schedule, local).between_nodes
            right[schedule.name, count, local] = tensors * schedule.chunks * ROOMY
    alike(found, right)
