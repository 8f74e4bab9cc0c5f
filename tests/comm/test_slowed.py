"""The emulated link: results are the real ones, and times the cost model's, on a clock of ours."""

from typing import Any

import pytest
import torch

from minidist import launch
from minidist.comm import slowed
from minidist.comm.ours import Ours
from minidist.comm.slowed import Slowed
from minidist.schedule.algorithms.direct import pairwise_all_to_all
from minidist.schedule.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from minidist.schedule.algorithms.tree import tree_broadcast
from minidist.schedule.cost import Link, seconds, switch

LINK = Link(0.5, 0.001)
RANKS = 4


class Clock:
    """The time; who sleeps lets it pass."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


class Instant:
    """A comm whose calls are done at once; it notes them, and the waits."""

    group, rank, ranks, span = None, 0, RANKS, None

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def wait(self) -> None:
        self.calls.append("wait")

    def _call(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        assert arguments[-1] is True, "the real call never waits by itself"
        return self

    broadcast = all_reduce = reduce_scatter = all_gather = all_to_all = _call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(slowed, "time", made)
    return made


WHOLE, PART = torch.zeros(3 * RANKS), torch.zeros(3)
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "broadcast": (tree_broadcast, (WHOLE, 2)),
    "all_reduce": (ring_all_reduce, (WHOLE,)),
    "reduce_scatter": (ring_reduce_scatter, (PART, WHOLE)),
    "all_gather": (ring_all_gather, (WHOLE, PART)),
    "all_to_all": (pairwise_all_to_all, (WHOLE, PART, [3], [3])),  # of each rank as much
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_what_its_algorithm_takes_for_all_its_bytes(name: str, clock: Clock) -> None:
    algorithm, arguments = CALLS[name]
    inner = Instant()
    work = getattr(Slowed(inner, LINK), name)(*arguments, async_op=True)
    took = seconds(algorithm(RANKS), WHOLE.nbytes, switch(LINK))
    assert work.span == (100.0, pytest.approx(100.0 + took))
    assert clock.now == 100.0, "it has not waited"
    assert [*inner.calls[0][: len(arguments)]] == [*arguments]


def test_calls_follow_one_another_and_a_wait_lasts_until_the_link_is_done(clock: Clock) -> None:
    inner = Instant()
    comm = Slowed(inner, LINK)
    first: Any = comm.all_reduce(WHOLE, async_op=True)
    clock.now += 1
    second: Any = comm.all_gather(WHOLE, PART, async_op=True)
    assert second.span[0] == first.span[1] > clock.now, "the link is taken"
    assert first.wait() is True
    assert clock.now == first.span[1]
    assert inner.calls[-1] == "wait"
    second.wait()
    second.wait()
    assert clock.now == second.span[1], "the second wait takes no time"
    clock.now += 5
    second.wait()  # late, so it does not sleep at all
    third: Any = comm.broadcast(PART, async_op=True)
    assert third.span[0] == clock.now, "the link is free"


def test_a_call_that_waits_returns_when_the_link_is_done(clock: Clock) -> None:
    inner = Instant()
    assert Slowed(inner, LINK).all_reduce(WHOLE) is None
    assert clock.now == 100 + seconds(ring_all_reduce(RANKS), WHOLE.nbytes, switch(LINK))
    assert inner.calls[-1] == "wait"


@pytest.mark.parametrize(
    ("comm", "link", "message"),
    [
        (None, LINK, "Slowed: comm: expected a Comm, such as Ours.., got NoneType"),
        (3, LINK, "Slowed: comm: expected a Comm"),
        (Instant(), None, "Slowed: link: expected a Link.alpha, beta., got None"),
        (Instant(), "fast", "Slowed: link: expected a Link.alpha, beta., got 'fast'"),
        (Instant(), 3.0, "Slowed: link: expected a Link"),
        (Instant(), [LINK], "Slowed: link: expected a Link"),
    ],
)
def test_what_is_no_comm_or_no_link(comm: Any, link: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Slowed(comm, link)


def real_results() -> list[list[float]]:
    comm = Slowed(Ours(), Link(0.0, 0.0))
    mine, part, whole = torch.full((6,), comm.rank + 1.0), torch.empty(2), torch.empty(18)
    comm.all_gather(whole, mine)
    comm.reduce_scatter(part, mine)
    comm.all_reduce(mine)
    root = torch.full((2,), float(comm.rank))
    comm.broadcast(root, 1)
    return [whole.tolist(), part.tolist(), mine.tolist(), root.tolist()]


def test_results_are_the_real_ones() -> None:
    gathered = [1.0] * 6 + [2.0] * 6 + [3.0] * 6
    assert launch(real_results, 3) == [[gathered, [6.0] * 2, [6.0] * 6, [1.0] * 2]] * 3
