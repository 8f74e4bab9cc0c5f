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
from minidist.collectives.runtime.notes import LONGEST, ROOM
from minidist.collectives.shared_memory import segments
from tests.collectives.bad_calls import BAD, DISAGREE, OWN, RANKS


def attempt(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def usable() -> bool:
    """Whether the group still reduces rightly, by every algorithm."""
    right = []
    for algorithm in ("ring", "tree", "naive", "native"):
        minidist.all_reduce(tensor := torch.full((5,), 1.0 + dist.get_rank()), algorithm=algorithm)
        right.append(bool((tensor == 10).all()))
    return all(right)


def on_every_rank() -> dict[str, tuple[str, bool]]:
    bad = dist.get_rank() == BAD
    calls = {name: case.call for name, case in OWN.items()}
    calls |= {name: call for name, (call, _) in DISAGREE.items()}
    return {name: (attempt(lambda call=call: call(bad)), usable()) for name, call in calls.items()}


@pytest.fixture(scope="module")
def heard() -> list[dict[str, tuple[str, bool]]]:
    """What each rank said to each case, and whether the group was usable afterwards."""
    return launch(on_every_rank, RANKS)


Heard = list[dict[str, tuple[str, bool]]]


@pytest.mark.parametrize("name", OWN)
def test_bad_input_on_one_rank_is_known_on_all(name: str, heard: Heard) -> None:
    case = OWN[name]
    for rank, results in enumerate(heard):
        said, fine = results[name]
        if rank == BAD:
            assert said.startswith(f"{case.error.__name__}: rank {BAD}: {case.name}: ")
        else:
            assert said.startswith(f"MismatchError: {case.name}: on rank {BAD}: ")
        assert case.said in said
        assert fine, f"rank {rank}: the group is not usable any more"


@pytest.mark.parametrize("name", DISAGREE)
def test_disagreement_is_known_on_all(name: str, heard: Heard) -> None:
    expected = DISAGREE[name][1]
    for rank, results in enumerate(heard):
        said, fine = results[name]
        assert said.startswith("MismatchError: ")
        assert expected in said
        assert fine, f"rank {rank}: the group is not usable any more"


def alone() -> dict[str, str]:
    """Without the check the bad rank calls by itself: it must raise before it sends anything."""
    if dist.get_rank() != BAD:
        return {}
    os.environ["MINIDIST_CHECK"] = "0"
    return {name: attempt(lambda case=case: case.call(True)) for name, case in OWN.items()}


def test_without_the_check_the_bad_rank_still_raises() -> None:
    heard = launch(alone, RANKS)[BAD]
    assert heard.keys() == OWN.keys()
    for name, case in OWN.items():
        start = f"{case.error.__name__}: rank {BAD}: {case.name}: "
        assert heard[name].startswith(start), heard[name]
        assert case.said in heard[name]


def in_a_sub_group() -> list[str]:
    rank = dist.get_rank()
    groups = [dist.new_group([3, 1], sort_ranks=False), dist.new_group([0, 2])]
    group = groups[0] if rank % 2 else groups[1]
    return [
        attempt(lambda: minidist.all_reduce(torch.ones(2 if rank == 3 else 1), group=group)),
        attempt(lambda: minidist.all_reduce(torch.ones(1, requires_grad=rank == 2), group=group)),
    ]


def test_ranks_are_named_by_their_numbers_outside_the_group() -> None:
    heard = launch(in_a_sub_group, 4)
    shapes = "MismatchError: all_reduce: the ranks disagree on tensor's shape"
    for rank in (1, 3):
        assert heard[rank][0] == f"{shapes}: rank 3 passed (2,); rank 1 passed (1,)"
        assert heard[rank][1] == "returned None"
    for rank in (0, 2):
        assert heard[rank][0] == "returned None"
    assert heard[0][1].startswith("MismatchError: all_reduce: on rank 2: tensor: requires grad")
    assert heard[2][1].startswith("ValueError: rank 2: all_reduce: tensor: requires grad")


def two_bad_ranks() -> str:
    bad = dist.get_rank() in (0, 2)
    return attempt(lambda: minidist.all_reduce(torch.ones(1, requires_grad=bad)))


def test_every_bad_rank_is_told_of_its_own_input() -> None:
    heard = launch(two_bad_ranks, 3)
    assert heard[0].startswith("ValueError: rank 0: all_reduce: tensor: requires grad")
    assert heard[1].startswith("MismatchError: all_reduce: on rank 0: tensor: requires grad")
    assert heard[2].startswith("ValueError: rank 2: all_reduce: tensor: requires grad")


def same_op_in_two_types() -> str:
    op = ReduceOp.SUM if dist.get_rank() else ReduceOp(ReduceOp.SUM)
    return attempt(lambda: minidist.all_reduce(torch.ones(1), op))


def test_what_means_the_same_is_no_disagreement() -> None:
    assert launch(same_op_in_two_types, 2) == ["returned None"] * 2


def test_any_description_has_room() -> None:
    """Nine facts at most and a problem; each character may need an escape."""
    assert 10 * (2 * LONGEST + len("output_tensor's device") + len('"": "", ')) <= ROOM


def environment() -> tuple[str, str]:
    own = os.environ.get("MINIDIST_CHECK", "unset")
    differ = torch.ones(1, dtype=torch.int32 if dist.get_rank() else torch.float32)
    return own, attempt(lambda: minidist.all_reduce(differ))  # of one size: it does not hang


def test_the_check_is_on_under_launch_and_the_environment_can_switch_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MINIDIST_CHECK", raising=False)
    assert [said[:13] for _, said in launch(environment, 2)] == ["MismatchError"] * 2
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    assert launch(environment, 2) == [("0", "returned None")] * 2


def far_away() -> dict[str, str]:
    """The same where ranks share no memory: they compare by messages."""
    if dist.get_rank() == 1:
        segments._FUTEX = 0
    bad = dist.get_rank() == BAD
    return {name: attempt(lambda call=call: call(bad)) for name, (call, _) in DISAGREE.items()}


def test_disagreement_is_known_without_shared_memory_too() -> None:
    for said in launch(far_away, RANKS):
        for name, (_, expected) in DISAGREE.items():
            assert said[name].startswith("MismatchError: "), said[name]
            assert expected in said[name]


def one_dies(folder: Path) -> None:
    minidist.all_reduce(torch.ones(1))
    if dist.get_rank() == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    said = attempt(lambda: minidist.all_reduce(torch.ones(1)))
    (folder / str(dist.get_rank())).write_text(said)


def test_a_rank_that_dies_before_it_agrees_is_an_error_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["minidist.launch.launch"], "GRACE", 30)
    with pytest.raises(RankError, match=f"rank {BAD} .*SIGKILL"):
        launch(one_dies, 3, tmp_path)
    said = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    for rank, each in enumerate(said):
        assert each.startswith(f"CommunicationError: rank {rank}: shared memory, barrier 2")
        assert each.endswith("a rank is gone; not there: rank 2")


def one_never_comes() -> str:
    group = dist.new_group(timeout=timedelta(seconds=3))
    minidist.barrier(group)
    said = ""
    if dist.get_rank() == 0:
        said = attempt(lambda: minidist.all_reduce(torch.ones(1), group=group))
    dist.barrier()
    return said


def test_a_rank_that_never_comes_is_an_error_within_the_groups_time() -> None:
    said = launch(one_never_comes, 2)[0]
    assert said.startswith("CommunicationError: rank 0: shared memory, barrier ")
    assert said.endswith("waited for 3 s; not there: rank 1")
