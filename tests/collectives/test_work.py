"""Asynchronous calls, and calls from many threads."""

import contextlib
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import MismatchError, all_reduce, launch
from minidist.collectives.runtime.work import Work
from tests.support.collectives import all_reduced, data, same

ALGORITHMS = ("ring", "tree", "naive")


OfRanks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two() -> OfRanks:
    """What each function of `on_two_ranks` found, on two ranks."""
    return launch(on_two_ranks, 2, timeout=60)


def started(work: Work | None) -> Work:
    assert work is not None, "async_op=True must return a Work"
    return work


def many_in_flight() -> list[str]:
    """Every algorithm, several each, waited for in another order than that of the calls."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for _ in range(20):  # nobody waits for these
        minidist.all_reduce(torch.ones(3000), async_op=True)
    flying = []
    for number, algorithm in enumerate(ALGORITHMS * 4):
        tensor = data(rank, 50 * number)
        work = minidist.all_reduce(tensor, async_op=True, algorithm=algorithm)
        flying.append((tensor, started(work)))
    wrong = []
    for number in (7, 0, 11, *range(12)):  # some of them twice
        tensor, work = flying[number]
        wrong += [] if work.wait() is True and work.is_completed() else [f"{number}: wait"]
        wrong += [] if same(tensor, all_reduced(ranks, 50 * number)) else [f"{number}: {tensor}"]
    return wrong


@pytest.mark.parametrize("ranks", [1, 3])
def test_several_in_flight_and_waited_for_in_any_order(ranks: int) -> None:
    assert launch(many_in_flight, ranks) == [[]] * ranks


def in_turn() -> list[str]:
    """Rank 0 calls asynchronously what the others call synchronously, and then all of them do."""
    rank, ranks, wrong = dist.get_rank(), dist.get_world_size(), []
    side = dist.new_group()
    if rank == 0:  # the others call only when this rank has looked at `is_completed`
        work = started(minidist.all_reduce(tensor := data(rank, 10), async_op=True))
        wrong += ["completed early"] if work.is_completed() else []
        dist.barrier(side)
    else:
        dist.barrier(side)
        work = started(minidist.all_reduce(tensor := data(rank, 10), async_op=True))
    work.wait()
    right = work.is_completed() and same(tensor, all_reduced(ranks, 10))
    wrong += [] if right else ["the late one"]
    tensors = [data(rank, size) for size in (4000, 40, 400)]
    works = [minidist.all_reduce(t, async_op=rank == 0) for t in tensors[:2]]
    minidist.all_reduce(tensors[2])
    wrong += [f"{i}: {w}" for i, w in enumerate(works) if (w is not None) != (rank == 0)]
    wrong += [] if all(w is None or w.is_completed() for w in works) else ["it overtook them"]
    return wrong + [f"{t}" for t in tensors if not same(t, all_reduced(ranks, len(t)))]


def test_a_work_is_completed_when_it_is_and_a_synchronous_call_waits_behind_it() -> None:
    assert launch(in_turn, 3) == [[]] * 3


def errors_at_wait() -> tuple[list[str], bool, int]:
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.new_group()
    shapes_differ = torch.ones(3 + rank)
    first = started(minidist.all_reduce(shapes_differ, group=group, async_op=True))
    leaf = torch.ones(3, requires_grad=rank == 1)
    second = started(minidist.all_reduce(leaf, group=group, async_op=True, check=True))
    third = started(minidist.all_reduce(tensor := data(rank, 8), group=group, async_op=True))
    said = []
    for work in (second, first, first):  # the second wait raises again
        try:
            work.wait()
            said.append("nothing")
        except (ValueError, MismatchError) as error:
            kind = "mismatch" if isinstance(error, MismatchError) else "own"
            said.append(f"{kind} {error}")
    third.wait()
    fine = first.is_completed() and same(tensor, all_reduced(ranks, 8))
    failed = started(all_reduce(torch.ones(2, requires_grad=True), group=group, async_op=True))
    with contextlib.suppress(ValueError):
        failed.wait()
    dist.destroy_process_group(group)
    del first, second, third, work, failed, group
    gc.collect()
    return said, fine, len(minidist.collectives.runtime.work._queues)


def test_errors_are_raised_at_wait_and_the_group_stays_usable_and_is_not_kept_alive(
    two: OfRanks,
) -> None:
    grad = "tensor: requires grad, but is written in place"
    shapes = "mismatch all_reduce: the ranks disagree on tensor's shape: "
    starts = ["mismatch all_reduce: on rank 1", "own rank 1: all_reduce"]
    for start, rank in zip(starts, two, strict=True):
        said, fine, queues = rank["errors_at_wait"]
        second, first, again = said
        assert second.startswith(f"{start}: {grad}")
        assert first == again == f"{shapes}rank 0 passed (3,); rank 1 passed (4,)"
        assert fine
        assert queues == 0


def crossed() -> list[bool]:
    """Rank 0 starts A then B, rank 1 B then A: with one queue for both they would never end.

    And what the caller sends in the same group does not get into a collective on its way.
    """
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensors = [data(rank, 1000), data(rank, 333)]
    for work in [
        started(minidist.all_reduce(tensors[i], group=groups[i], async_op=True))
        for i in ((0, 1) if rank == 0 else (1, 0))
    ]:
        work.wait()
    ours, message = data(rank, 2), torch.full((2,), 7.0 if rank == 0 else 0.0)
    if rank == 0:
        dist.barrier(groups[0])  # rank 1 has its collective on the way, and receives
    works = [started(all_reduce(t, async_op=True)) for t in (ours, *torch.ones(3, 2))]
    if rank == 0:
        dist.send(message, 1)
    else:
        dist.barrier(groups[0])
        dist.recv(message, 0)
    for work in works:
        work.wait()
    right = [same(each, all_reduced(2, len(each))) for each in (*tensors, ours)]
    return [*right, bool((message == 7).all())]


def test_groups_do_not_wait_for_each_other_and_messages_of_the_caller_are_kept_apart(
    two: OfRanks,
) -> None:
    assert [rank["crossed"] for rank in two] == [[True] * 4] * 2


def futures() -> tuple[bool, bool, bool, str]:
    """torch's idiom; a future taken after the end; what is held; and a call that fails."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    work = started(minidist.all_reduce(tensor := data(rank, 5), async_op=True))
    half = work.get_future().then(lambda done: done.value()[0] / 2).wait()
    right = torch.equal(half, all_reduced(ranks, 5) / 2)
    work.wait()
    (late,) = work.get_future().wait()
    given = weakref.ref(whole := torch.ones(ranks))
    part = torch.empty(1)
    work = started(minidist.reduce_scatter_tensor(part, whole, async_op=True))
    del whole
    work.get_future().wait()
    held = given() is not None  # on a GPU its kernels may only be queued
    work.wait()
    bad = torch.ones(1, requires_grad=True)
    with pytest.raises(Exception, match="requires grad") as caught:
        started(minidist.all_reduce(bad, async_op=True)).get_future().wait()
    return right, late is tensor, held and given() is None, type(caught.value).__name__


def test_a_work_has_torchs_future(two: OfRanks) -> None:
    assert [rank["futures"] for rank in two] == [(True, True, True, "ValueError")] * 2


def from_many_threads() -> list[bool]:
    """Each thread's calls are alike, so that it does not matter which of them comes first."""
    sums: list[torch.Tensor] = []

    def call() -> None:
        for _ in range(50):
            minidist.all_reduce(tensor := torch.ones(3000), check=False)
            sums.append(tensor)

    for _ in range(2):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [len(sums) == 400, all(bool((each == 2).all()) for each in sums)]


def test_threads_of_one_rank_take_turns_in_a_group(two: OfRanks) -> None:
    assert [rank["from_many_threads"] for rank in two] == [[True, True]] * 2


def on_two_ranks() -> dict[str, Any]:
    every = (errors_at_wait, crossed, futures, from_many_threads)  # the first wants no other queue
    return {each.__name__: each() for each in every}
