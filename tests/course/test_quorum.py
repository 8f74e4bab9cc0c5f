"""A quorum goes on without those who die or hang, takes them back, and is exact; it never hangs."""

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from course.training.quorum import Member, Quorum, Round, _framed
from course.training.rounds import Run, Work, ended, replayed, running
from minidist.launch.outcome import Raised

SMALL = Work(width=16, layers=1, context=16, every=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As workers have it: sums are in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_each_worker_reads_samples_of_its_own() -> None:
    model = SMALL.model()
    losses = {SMALL.loss(model, worker, step).item() for worker in (0, 1) for step in (0, 1)}
    assert len(losses) == 4


def everyone(ended: Round) -> bool:
    return len(ended.members) == 3


def without(worker: int) -> Any:
    return lambda ended: worker not in ended.members


def those_of_one_process(run: Run, weights: dict[int, torch.Tensor]) -> None:
    """All members of the last round end with the oracle's weights, bit for bit."""
    *_, right = replayed(SMALL, [ended.members for ended in run.rounds])
    assert sorted(weights) == run.rounds[-1].members
    for worker, found in weights.items():
        assert torch.equal(found, right), worker


@pytest.mark.claim("I2")
def test_those_who_are_killed_cost_their_own_steps_and_come_back() -> None:
    with running(SMALL, 3) as run:
        run.until(everyone)
        for worker in (2, 0):  # 0 is the one that gives newcomers its state
            run.kill(worker)
            run.until(without(worker))
            run.start(worker)
            run.until(everyone)
        weights = run.finish()
    assert [1 in ended.members for ended in run.rounds] == [True] * len(run.rounds)
    those_of_one_process(run, weights)


@pytest.mark.claim("I2")
def test_one_that_hangs_is_left_behind_and_a_state_that_nobody_has_is_missed() -> None:
    with running(SMALL, 3, patience=3) as run:
        run.until(everyone)
        run.signal(1, signal.SIGSTOP)
        run.until(without(1))
        run.signal(1, signal.SIGCONT)
        left = ended(run.processes[1])
        assert isinstance(left, Raised)
        assert "ConnectionError" in left.describe("") or "BrokenPipe" in left.describe("")
        run.start(1)
        run.until(everyone)
        weights = run.finish()
        those_of_one_process(run, weights)
        run.start(0)  # all have ended, and their weights with them
        assert "the quorum has closed the connection" in ended(run.processes[0]).describe("")


# ---- the protocol, with threads for workers ----


class State:
    """What stands for a DiLoCo's state."""

    def __init__(self, value: float) -> None:
        self.value = value

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def worker(path: Path, number: int) -> Any:
    """Its end of the connection; it does not wait for ever."""
    member = Member(path, number)
    member._socket.settimeout(60)
    return member


def meet(path: Path, *numbers: int) -> tuple[list[Any], list[State]]:
    """Let workers join, each with a state of its own number."""
    members, states = [worker(path, number) for number in numbers], list(map(State, numbers))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda pair: pair[0].join(pair[1]), zip(members, states, strict=True)))
    return members, states


def a_round(*members: Any) -> list[tuple[float, int]]:
    """Each sends its number plus 1; what each gets: the sum, and of how many."""

    def send(member: Any) -> tuple[float, int]:
        change = torch.tensor([member.rank + 1.0])
        member.all_reduce(change)
        return change.item(), member.ranks

    with ThreadPoolExecutor() as pool:
        return list(pool.map(send, members))


def test_a_change_that_has_arrived_counts_and_half_a_change_does_not(tmp_path: Path) -> None:
    ended: SimpleQueue[Round] = SimpleQueue()
    with Quorum(tmp_path / "q", 3, after_round=ended.put):
        (one, two, three), states = meet(tmp_path / "q", 1, 2, 3)
        assert [state.value for state in states] == [1, 1, 1]
        three._send({"change": torch.tensor([4.0])})
        three._socket.shutdown(socket.SHUT_RDWR)  # dead, but its change is there
        assert a_round(one, two) == [(9, 3)] * 2
        framed = _framed({"change": torch.tensor([3.0])})
        two._socket.sendall(framed[: len(framed) // 2])
        two._socket.shutdown(socket.SHUT_RDWR)
        assert a_round(one) == [(2, 1)]
    assert [ended.get().members for _ in range(2)] == [[1, 2, 3], [1]]


def newcomer(quorum: Quorum, path: Path, number: int) -> Any:
    """A worker that the quorum has noticed."""
    member = worker(path, number)
    while number not in quorum._newcomers:
        time.sleep(0.01)
    return member


def test_a_newcomer_gets_the_state_of_a_member_and_waits_for_no_one_who_has_died(
    tmp_path: Path,
) -> None:
    path = tmp_path / "q"
    with ThreadPoolExecutor() as pool, Quorum(path, 2) as quorum:
        (one, two), _ = meet(path, 1, 2)
        new, state = newcomer(quorum, path, 3), State(3)
        joined = pool.submit(new.join, state)
        assert a_round(one, two) == [(5, 2)] * 2
        assert [one._asked, two._asked] == [True, False]
        one._socket.shutdown(socket.SHUT_RDWR)  # without an answer
        assert a_round(two) == [(3, 1)]
        assert two._asked
        two.share(State(7))
        joined.result(timeout=60)
        assert state.value == 7
        assert a_round(two, new) == [(7, 2)] * 2
        again = newcomer(quorum, path, 3)  # in place of one whose connection still stands
        assert a_round(two) == [(3, 1)]
        two.share(State(8))
        again.join(state)
        assert a_round(two, again) == [(7, 2)] * 2
        with pytest.raises(ConnectionError, match="worker 3: the quorum has closed"):
            new._receive()
        quorum.finish()
        a_round(two, again)
        assert two.last
        assert again.last


def test_who_is_late_is_left_behind(tmp_path: Path) -> None:
    with Quorum(tmp_path / "q", 2, patience=0.2):
        (one, two), _ = meet(tmp_path / "q", 1, 2)
        assert a_round(one) == [(2, 1)]
        with pytest.raises(ConnectionError, match="worker 2: the quorum has closed"):
            two._receive()


def test_before_the_first_round_another_may_begin(tmp_path: Path) -> None:
    with Quorum(tmp_path / "q", 2) as quorum:
        (one, two), _ = meet(tmp_path / "q", 1, 2)
        one._send({"change": torch.ones(1)})
        one._socket.shutdown(socket.SHUT_RDWR)
        while 1 in quorum._members:
            time.sleep(0.01)
        two._socket.shutdown(socket.SHUT_RDWR)
        (three,), _ = meet(tmp_path / "q", 3)
        assert quorum._deadline is None  # nor is it late in their round
        assert a_round(three) == [(4, 1)]  # nothing of those whose weights are gone


def test_what_comes_in_is_not_unpickled_so_it_cannot_run_code(tmp_path: Path) -> None:
    with Quorum(tmp_path / "q", 1):
        member = worker(tmp_path / "q", 0)
        assert member._receive() == {"first": True}
        member._send({"change": SimpleNamespace()})
        with pytest.raises(ConnectionError, match="expected a message of this protocol"):
            member._receive()


BAD: list[tuple[Any, str]] = [
    ({"change": torch.ones(2)}, r"expected torch.float32 of shape \(1,\), got .* shape \(2,\)"),
    ({"change": torch.ones(())}, r"got torch.float32 of shape \(\)"),
    ({"change": torch.ones(1).double()}, "got torch.float64 of"),
    ({"change": torch.tensor([torch.nan])}, "expected finite floats, got not all finite"),
    ({"change": torch.tensor([torch.inf])}, "expected finite floats, got not all finite"),
    ({"change": torch.tensor([1])}, "expected finite floats, got torch.int64"),
    ({"change": torch.ones(1).to_sparse()}, "change: expected a dense tensor"),
    ({"change": "none"}, "change: expected a dense tensor, got str"),
    ({"join": 2}, "change: expected a dense tensor, got NoneType"),
    ({"state": {}}, "state: expected none from a member that was not asked"),
    ([], "expected a dict, got list"),
]


@pytest.mark.parametrize("rounds", [0, 1], ids=["in the first round", "later"])
@pytest.mark.parametrize(("bad", "why"), BAD, ids=[str(bad) for bad, _ in BAD])
def test_one_bad_message_costs_its_sender_alone(
    tmp_path: Path, bad: Any, why: str, rounds: int
) -> None:
    with Quorum(tmp_path / "q", 3) as quorum:
        (one, two, three), _ = meet(tmp_path / "q", 1, 2, 3)
        for _ in range(rounds):
            a_round(one, two, three)
        one._send(bad)
        assert a_round(two, three) == [(7, 2)] * 2
        with pytest.raises(ConnectionError, match=f"worker 1: the quorum has closed.*{why}"):
            one._receive()
        assert sorted(quorum._members) == [2, 3]
        assert a_round(two, three) == [(7, 2)] * 2


def test_who_joins_without_a_number_or_when_nobody_lives_is_told_why(tmp_path: Path) -> None:
    with Quorum(tmp_path / "q", 1):
        stranger: Any = Member(tmp_path / "q", None)  # type: ignore[arg-type]
        with pytest.raises(ConnectionError, match="join: expected a worker's number, got None"):
            stranger._receive()
        (one,), _ = meet(tmp_path / "q", 1)
        a_round(one)
        with pytest.raises(ConnectionError, match="not all finite"):
            one.all_reduce(torch.tensor([torch.nan]))
        with pytest.raises(ConnectionError, match="the model's state is lost with the last"):
            worker(tmp_path / "q", 2)._receive()
