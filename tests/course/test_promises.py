"""The chapter on collectives: what its table says each call must send, and can be made of."""

import pytest

from minidist.schedule import algorithms as a
from minidist.schedule.schedule import Schedule, Step
from minidist.schedule.traffic import replay, traffic

RANKS = range(2, 18)


def chain_broadcast(ranks: int) -> Schedule:
    """The root sends its tensor once, and each rank passes it on."""
    steps = [Step.of(src=r, dst=r + 1, chunk=0, reduce=False) for r in range(ranks - 1)]
    return Schedule("chain", "broadcast", ranks, 1, lambda: steps)


def in_chunks(one: Schedule) -> Schedule:
    """The same for a tensor of N chunks: each message carries all of them."""
    steps = [Step.of(each.src, each.dst, 0, each.reduce, one.ranks) for each in one]
    return Schedule(one.name, one.collective, one.ranks, one.ranks, lambda: steps)


@pytest.mark.parametrize("n", RANKS)
def test_the_table_has_what_the_root_and_what_each_other_rank_must_send(n: int) -> None:
    size = 60 * n
    least = {
        "broadcast": (chain_broadcast(n), size, size, 1),
        "reduce": (chain_broadcast(n).backwards("", "reduce", reduce=True), 0, size, 1),
        "scatter": (a.direct_scatter(n), size - 60, 0, n),
        "gather": (a.direct_gather(n), 0, 60, n),
        "all_gather": (a.ring_all_gather(n), size - 60, size - 60, n),
        "reduce_scatter": (a.ring_reduce_scatter(n), size - 60, size - 60, n),
        "all_reduce": (a.ring_all_reduce(n), 2 * (size - 60), 2 * (size - 60), n),
    }
    for name, (schedule, of_root, of_another, chunks) in least.items():
        done, sent = replay(schedule), traffic(schedule, size, itemsize=1).sent_bytes
        assert done.right() == done.wanted
        assert schedule.chunks == chunks
        assert sent[0] == of_root
        assert name == "broadcast" or {*sent[1:]} == {of_another}, "a chain's last rank sends none"
    exchange = traffic(a.pairwise_all_to_all(n), n * size, itemsize=1).sent_bytes
    assert {*exchange} == {size - 60}
    assert {*traffic(a.ring_shift(n), n * size, itemsize=1).sent_bytes} == {size}


@pytest.mark.parametrize("n", range(1, 18))
def test_the_calls_in_its_last_column_make_the_one_in_its_first(n: int) -> None:
    down, up = in_chunks(a.tree_reduce(n)), in_chunks(a.tree_broadcast(n))
    collect, deal = a.direct_gather(n), a.direct_scatter(n)
    scattered, gathered = a.ring_reduce_scatter(n), a.ring_all_gather(n)
    for kind, first, second in [
        ("all_reduce", scattered, gathered),
        ("all_reduce", down, up),
        ("all_gather", collect, up),
        ("reduce_scatter", down, deal),
        ("broadcast", deal, gathered),
        ("reduce", scattered, collect),
    ]:
        done = replay(first.then(second, "", kind).check())  # type: ignore[arg-type]
        assert done.right() == done.wanted, kind


@pytest.mark.parametrize("n", range(1, 18))
def test_read_backwards_one_promise_is_another(n: int) -> None:
    for there, kind, reduce in [
        (a.direct_scatter(n), "gather", False),
        (a.naive_broadcast(n), "reduce", True),
        (a.tree_broadcast(n), "reduce", True),
        (a.ring_all_gather(n), "reduce_scatter", True),
    ]:
        back = there.backwards("", kind, reduce=reduce).check()  # type: ignore[arg-type]
        assert replay(back).right() == replay(back).wanted
        sent, received = traffic(there, 1000).sent_bytes, traffic(back, 1000).received_bytes
        assert (sent == received).all()


def test_a_root_that_deals_out_parts_sends_less_than_two_tensors() -> None:
    for n in RANKS:
        halves = a.direct_scatter(n), a.ring_all_gather(n)
        assert sum(traffic(half, 16 * n, itemsize=1).sent_bytes[0] for half in halves) < 2 * 16 * n
        direct = traffic(a.naive_broadcast(n), 16 * n, itemsize=1)
        assert direct.sent_bytes[0] == (n - 1) * 16 * n
