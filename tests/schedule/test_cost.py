"""The cost model against formulas that can be worked out by hand."""

import math
from collections.abc import Callable
from functools import partial
from itertools import chain, product, repeat

import numpy as np
import pytest

from minidist.schedule import algorithms
from minidist.schedule.cost import Link, nodes, seconds, shared, switch
from minidist.schedule.schedule import Schedule, Send
from tests.schedule.test_proof import everything
from tests.support.cases import alike
from tests.support.schedules import step_of

LINK, SLOW = Link(alpha=1e-5, beta=1e-9), Link(alpha=1e-4, beta=1e-8)
SIZE = 1 << 20
RING = algorithms.ring_all_reduce(2)


@pytest.mark.claim("B5")
def test_ring_on_a_switch_is_the_textbook_formula() -> None:
    ranks = (1, 3, 8, 100)
    found = {n: seconds(algorithms.ring_all_reduce(n), SIZE, switch(LINK)) for n in ranks}
    formula = {n: pytest.approx(2 * (n - 1) * (LINK.alpha + LINK.beta * SIZE / n)) for n in ranks}
    alike(found, formula)


@pytest.mark.claim("B8")
def test_hierarchical_on_nodes_is_three_rings() -> None:
    count, local = 4, 8
    schedule = algorithms.hierarchical_all_reduce(count * local, local=local)
    inside = 2 * (local - 1) * (LINK.alpha + LINK.beta * SIZE / local)
    # All of a node's ranks send at once across its one link: together the whole tensor's share.
    across = 2 * (count - 1) * (SLOW.alpha + SLOW.beta * SIZE / count)
    predicted = seconds(schedule, SIZE, nodes(local, LINK, SLOW))
    assert predicted == pytest.approx(inside + across)


def one_step(ranks: int, *sends: Send) -> Schedule:
    return Schedule("one step", "all_reduce", ranks, 4, lambda: [step_of(sends)])


def test_one_slow_link_sets_the_pace_of_the_ring_and_not_of_who_does_not_use_it() -> None:
    """Rank 2 has a slow link: it carries a chunk in each step, and 4 of a path's 6 hops at most."""
    slow = Link(alpha=5e-5, beta=1e-8)
    uneven = switch([LINK, LINK, slow, LINK])
    ring = seconds(algorithms.ring_all_reduce(4), SIZE, uneven)
    assert ring == pytest.approx(2 * LINK.alpha + 4 * slow.alpha + 6 * slow.beta * SIZE / 4)
    around = one_step(4, Send(0, 1, 0, True), Send(1, 3, 1, True))
    assert seconds(around, SIZE, uneven) == pytest.approx(LINK.alpha + LINK.beta * SIZE / 4)
    assert seconds(around, SIZE, switch([LINK] * 4)) == seconds(around, SIZE, switch(LINK))


def test_the_ranks_of_a_node_share_its_links_out() -> None:
    """Four ranks of node 0 each send a quarter to their peer in node 1."""
    across = one_step(8, *(Send(r, r + 4, r, False) for r in range(4)))
    for rails, share in ((1, 4), (2, 2), (4, 1)):
        predicted = seconds(across, SIZE, nodes(4, LINK, SLOW, rails=rails))
        assert predicted == pytest.approx(SLOW.alpha + SLOW.beta * share * SIZE / 4)


def test_ranks_of_one_host_take_turns_on_its_cores() -> None:
    """Four messages of a step on one core, two or 64; a lone one of a tree has no use for more."""
    ring, tree, gamma = algorithms.ring_all_reduce(4), algorithms.tree_all_reduce(4), 3e-10
    one = seconds(ring, SIZE, shared(LINK, gamma))
    # In each of 6 steps 4 ranks send a quarter; in 3 of them 4 ranks reduce one.
    assert one == pytest.approx(6 * (4 * LINK.alpha + LINK.beta * SIZE) + 3 * gamma * SIZE)
    two = shared(LINK, gamma, cores=2)
    assert seconds(ring, SIZE, two) == pytest.approx(one / 2)
    whole = LINK.alpha + LINK.beta * SIZE
    assert seconds(tree, SIZE, two) == pytest.approx(4 * whole + 2 * gamma * SIZE)
    many = shared(LINK, gamma, cores=64)
    assert seconds(ring, SIZE, many) == pytest.approx(seconds(ring, SIZE, switch(LINK, gamma)))


# ---- latency adds up along paths ----


@pytest.mark.claim("B8")
def test_a_ring_over_nodes_pays_for_a_hop_out_once_in_each_node() -> None:
    """The longest path has 2M hops out; NCCL counts 2(M - 1), which all paths have."""
    slow, found, formula = Link(alpha=7e-5, beta=0.0), {}, {}
    for count, local in ((2, 1), (4, 8), (3, 5), (128, 8)):
        ring, hops = algorithms.ring_all_reduce(count * local), 2 * (count * local - 1)
        found[count, local] = seconds(ring, 0, nodes(local, LINK, slow))
        out = min(2 * count, hops)
        formula[count, local] = pytest.approx((hops - out) * LINK.alpha + out * slow.alpha)
    alike(found, formula)


def longest_path(schedule: Schedule, local: int, inside: float, between: float) -> float:
    """The most latency that any copy of any chunk has behind it, followed message by message."""
    behind = np.zeros((schedule.ranks, schedule.chunks))
    for step in schedule:
        sent = behind.copy()
        for src, dst, chunk, reduce, width in step:
            run = slice(chunk, chunk + width)
            comes = sent[src, run] + (inside if src // local == dst // local else between)
            behind[dst, run] = np.maximum(behind[dst, run], comes) if reduce else comes
    return float(behind.max())


def test_latency_is_that_of_the_longest_path_of_a_chunk() -> None:
    makers: list[Callable[[int], Schedule]] = [
        algorithms.ring_all_reduce,
        algorithms.tree_all_reduce,
        algorithms.recursive_doubling_all_reduce,
        algorithms.halving_doubling_all_reduce,
        partial(algorithms.hierarchical_all_reduce, local=8),
    ]
    found, by_path = {}, {}
    for make, ranks in product(makers, (8, 16, 64)):
        schedule = make(ranks)
        for case in product((1e-6, 9e-6), (2e-6, 5e-6), (2, 8)):
            inside, between, local = case
            network = nodes(local, Link(inside, 1e-9), Link(between, 1e-8))
            found[schedule.name, ranks, *case] = seconds(schedule, 0, network)
            latency = longest_path(schedule, local, inside, between)
            by_path[schedule.name, ranks, *case] = pytest.approx(latency)
    alike(found, by_path)


def test_a_rank_that_hears_from_two_in_a_run_of_steps_is_as_late_as_the_later_one() -> None:
    sends = Send(1, 0, 0, False), Send(2, 0, 1, False), Send(0, 1, 2, False), Send(0, 2, 3, False)
    step, slow = step_of(sends), Link(alpha=1e-3, beta=0.0)
    network = nodes(2, LINK, slow)  # ranks 0 and 1, and rank 2 by itself
    for times in range(1, 6):
        run = Schedule("run", "shift", 3, 4, partial(repeat, step, times), alike=times)
        assert seconds(run, 0, network) == pytest.approx(times * slow.alpha)


def message_by_message(schedule: Schedule, nbytes: float, link: Link, gamma: float) -> float:
    """The switch, priced by hand: no arrays, no grouping of steps."""
    total = 0.0
    for step in schedule:
        sent: dict[tuple[str, int], float] = {}
        reduced: dict[int, float] = {}
        for send in step:
            size = send.width * nbytes / schedule.chunks
            for end in (("out", send.src), ("in", send.dst)):
                sent[end] = sent.get(end, 0.0) + size
            if send.reduce:
                reduced[send.dst] = reduced.get(send.dst, 0.0) + size
        if sent:
            total += link.alpha + link.beta * max(sent.values())
            total += gamma * max(reduced.values(), default=0.0)
    return total


@pytest.mark.claim("A7")
def test_the_price_is_that_of_every_message_one_by_one() -> None:
    """By hand, and step by step without the outline, by which a price skips repetitions."""
    found, right = {}, {}
    nets = {"cores": shared(LINK, 3e-10), "nodes": nodes(2, LINK, SLOW)}
    for schedule in chain.from_iterable(map(everything, (1, 2, 3, 8, 12, 33))):
        name, ranks, steps = f"{schedule.name}{schedule.phases}", schedule.ranks, list(schedule)
        case = name, ranks, "switch"
        found[case] = seconds(schedule, SIZE, switch(LINK, 3e-10))
        right[case] = pytest.approx(message_by_message(schedule, SIZE, LINK, 3e-10))
        single = Schedule("all", "all_reduce", ranks, schedule.chunks, lambda steps=steps: steps)
        for size, net in product((0, SIZE), nets):
            found[name, ranks, net, size] = seconds(schedule, size, nets[net])
            right[name, ranks, net, size] = pytest.approx(seconds(single, size, nets[net]))
    alike(found, right)


@pytest.mark.claim("B5")
def test_ring_and_tree_cross_where_the_formulas_say() -> None:
    cheaper = {}
    for ranks in (4, 8, 16, 100):
        ring_steps, tree_steps = 2 * (ranks - 1), 2 * math.ceil(math.log2(ranks))
        saved = tree_steps - ring_steps / ranks
        crossing = LINK.alpha / LINK.beta * (ring_steps - tree_steps) / saved
        ring, tree = (
            [seconds(make(ranks), crossing * times, switch(LINK)) for times in (0.5, 2)]
            for make in (algorithms.ring_all_reduce, algorithms.tree_all_reduce)
        )
        cheaper[ranks] = [a < b for a, b in zip(ring, tree, strict=True)]
    assert set(map(tuple, cheaper.values())) == {(False, True)}, cheaper
