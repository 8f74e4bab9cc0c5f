"""Bad input and disagreement: every rank gets an exception that names the rank and the argument."""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, ReduceOp, launch
from minidist.collectives.checks import agreement
from minidist.collectives.runtime.notes import LONGEST, ROOM, encode
from minidist.collectives.shared_memory import segments
from tests.support.bad_calls import BAD, DISAGREE, OWN, RANKS


def attempt(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def usable() -> bool:
    """Whether the group still reduces rightly, by messages of ours and by the backend's own."""
    ours, native = torch.full((2, 5), 1.0 + dist.get_rank())
    minidist.all_reduce(ours)
    dist.all_reduce(native)
    return bool((ours == 10).all() and (native == 10).all())


def on_every_rank() -> tuple[dict[str, tuple[str, bool]], list[str]]:
    """What this rank says to each case, and whether the group was usable afterwards."""
    bad = dist.get_rank() == BAD
    calls = {name: case.call for name, case in OWN.items()}
    calls |= {name: call for name, (call, _) in DISAGREE.items()}
    said = {name: (attempt(lambda call=call: call(bad)), usable()) for name, call in calls.items()}
    return said, in_a_sub_group()


Heard = list[tuple[dict[str, tuple[str, bool]], list[str]]]


@pytest.fixture(scope="module")
def heard() -> Heard:
    return launch(on_every_rank, RANKS)


def test_bad_input_and_disagreement_are_known_on_all_ranks(heard: Heard) -> None:
    offenders = []
    for rank, (results, _) in enumerate(heard):
        for name, (said, usable) in results.items():
            start, expected = "MismatchError: ", DISAGREE[name][1] if name in DISAGREE else ""
            if case := OWN.get(name):
                own = f"{case.error.__name__}: rank {BAD}: {case.name}: "
                start = own if rank == BAD else f"MismatchError: {case.name}: on rank {BAD}: "
                expected = case.said
            if not (said.startswith(start) and expected in said):
                offenders.append(f"{name}, rank {rank}: {said}; expected {start}...{expected}")
            if not usable:
                offenders.append(f"{name}, rank {rank}: the group is not usable any more")
    assert heard[0][0].keys() == OWN.keys() | DISAGREE.keys()
    assert not offenders, "\n".join(offenders)


def without() -> tuple[dict[str, str], dict[str, str], list[str]]:
    """By messages, where ranks share no memory; and on the bad rank alone, without the check."""
    if dist.get_rank() == 1:
        segments._FUTEX = 0
    bad = dist.get_rank() == BAD
    by_messages = {name: attempt(lambda c=call: c(bad)) for name, (call, _) in DISAGREE.items()}
    os.environ["MINIDIST_CHECK"] = "0"
    alone = {name: attempt(lambda c=case: c.call(True)) for name, case in OWN.items() if bad}
    refused = [attempt(lambda: minidist.all_reduce(torch.ones(1), algorithm="shared_memory"))]
    refused += [attempt(lambda: DISAGREE["what stays"][0](True))] if bad else []
    return by_messages, alone, refused


def test_without_shared_memory_all_know_and_without_the_check_the_bad_rank_still_raises() -> None:
    heard = launch(without, RANKS)
    no_memory = "algorithm shared_memory: cannot map the memory of rank 1: "
    for rank, (by_messages, _, refused) in enumerate(heard):
        for name, (_, expected) in DISAGREE.items():
            assert by_messages[name].startswith("MismatchError: "), by_messages[name]
            assert expected in by_messages[name]
        assert refused[0].startswith(f"ValueError: rank {rank}: all_reduce: {no_memory}")
    _, alone, (_, stays) = heard[BAD]
    assert stays.startswith(f"MismatchError: {DISAGREE['what stays'][1]}")
    assert alone.keys() == OWN.keys()
    for name, case in OWN.items():
        start = f"{case.error.__name__}: rank {BAD}: {case.name}: "
        assert alone[name].startswith(start), alone[name]
        assert case.said in alone[name]


def in_a_sub_group() -> list[str]:
    """Two groups, with a mismatch in one and bad input in the other; then two bad ranks."""
    rank = dist.get_rank()
    groups = [dist.new_group([3, 1], sort_ranks=False), dist.new_group([0, 2])]
    group, op = groups[not rank % 2], ReduceOp.SUM if rank else ReduceOp(ReduceOp.SUM)
    return [
        attempt(lambda: minidist.all_reduce(torch.ones(2 if rank == 3 else 1), group=group)),
        attempt(lambda: minidist.all_reduce(torch.ones(1, requires_grad=rank == 2), group=group)),
        attempt(lambda: minidist.all_reduce(torch.ones(1, requires_grad=rank > 1))),
        attempt(lambda: minidist.all_reduce(torch.ones(1), op)),  # means the same on all
    ]


def test_ranks_are_named_by_their_numbers_outside_the_group(heard: Heard) -> None:
    said = [in_group for _, in_group in heard]
    mine = "ValueError: rank {}: all_reduce: tensor: requires grad"
    theirs = "MismatchError: all_reduce: on rank 2: tensor: requires grad"
    shapes = "MismatchError: all_reduce: the ranks disagree on tensor's shape: "
    for rank in (1, 3):
        assert said[rank][0] == f"{shapes}rank 3 passed (2,); rank 1 passed (1,)"
        assert said[rank][1] == "returned None"
    for rank, start in ((0, theirs), (2, mine.format(2))):
        assert said[rank][0] == "returned None"
        assert said[rank][1].startswith(start)
    for rank, start in enumerate((theirs, theirs, mine.format(2), mine.format(3))):
        assert said[rank][2].startswith(start), "every bad rank hears of its own input"
        assert said[rank][3] == "returned None"


def test_any_description_has_room() -> None:
    """Nine facts at most and a problem; each character may need an escape."""
    assert 10 * (2 * LONGEST + len("output_tensor's device") + len('"": "", ')) <= ROOM


def described() -> tuple[int, int]:
    """How often a call that comes back is put into words, and how many sleep for its check."""
    with pytest.MonkeyPatch.context() as patch:
        words, polls = list[object](), list[int]()
        patch.setattr(agreement, "encode", lambda note: words.append(note) or encode(note))
        shared = segments.shared_segments(None)
        patch.setattr(shared, "_counter", counter := Counting(shared._counter, polls))
        for _ in range(20):
            minidist.all_reduce(torch.ones(7), algorithm="shared_memory", check=True)
        assert counter is shared._counter
    return len(words), len(polls)


class Counting:
    """A barrier's counter that notes arrivals."""

    def __init__(self, counter: object, arrivals: list[int]) -> None:
        self.counter, self.arrivals = counter, arrivals

    def __getattr__(self, name: str) -> object:
        if name == "arrive":
            self.arrivals.append(1)
        return getattr(self.counter, name)


def test_the_check_of_a_call_that_comes_back_is_words_once_and_no_barrier_of_its_own() -> None:
    assert launch(described, 2) == [(1, 20)] * 2


def one_dies(folder: Path) -> None:
    """A rank does not come in a group's time, and then it dies."""
    group = dist.new_group(timeout=timedelta(seconds=8))
    minidist.barrier(group)
    said = []
    for _ in range(2 if dist.get_rank() != BAD else 0):  # the second time it is known at once
        said.append(attempt(lambda: minidist.all_reduce(torch.ones(1), group=group)))
    minidist.barrier()
    if dist.get_rank() == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    said.append(attempt(lambda: minidist.all_reduce(torch.ones(1))))
    (folder / str(dist.get_rank())).write_text("\n".join(said))


def test_a_rank_that_never_comes_or_dies_before_it_agrees_is_an_error_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["minidist.launch.launch"], "GRACE", 30)
    with pytest.raises(RankError, match=f"rank {BAD} .*SIGKILL"):
        launch(one_dies, 3, tmp_path)
    for rank in (0, 1):
        late, again, dead = (tmp_path / str(rank)).read_text().splitlines()
        for said in (late, dead):
            assert said.startswith(f"CommunicationError: rank {rank}: shared memory, barrier ")
        assert again == late
        assert late.endswith(f"waited for 8 s; not there: rank {BAD}")
        assert dead.endswith(f"a rank is gone; not there: rank {BAD}")
