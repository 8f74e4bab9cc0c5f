"""Asynchronous calls, and collectives within sub-groups."""

import contextlib
import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import MismatchError, ReduceOp, all_reduce, launch
from minidist.collectives.runtime.work import Work
from tests.support.collectives import all_reduced, data, reduced, same

ALGORITHMS = ("ring", "tree", "naive", "native")


def started(work: Work | None) -> Work:
    assert work is not None, "async_op=True must return a Work"
    return work


def many_in_flight() -> list[str]:
    """Every algorithm, several each, waited for in another order than that of the calls."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    flying = []
    for number, algorithm in enumerate(ALGORITHMS * 3):
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


def all_kinds_in_flight() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, part, total = data(rank, 5 * ranks), torch.empty(5), data(rank, (4, 3)).t()
    gathered = torch.empty(2, 5 * ranks).t()
    works = [
        minidist.reduce_scatter_tensor(part, whole, ReduceOp.MAX, async_op=True),
        minidist.all_reduce(total, ReduceOp.AVG, async_op=True),
        minidist.all_gather_into_tensor(gathered, data(rank, (5, 2)), async_op=True),
    ]
    for work in reversed(works):
        started(work).wait()
    want = all_reduced(ranks, 5 * ranks, op="MAX").tensor_split(ranks)[rank]
    wrong = [] if same(part, want) else ["reduce_scatter"]
    average = all_reduced(ranks, (4, 3), op="AVG").t()
    wrong += [] if same(total, average) else ["all_reduce"]
    want = torch.cat([data(r, (5, 2)) for r in range(ranks)])
    return wrong + ([] if same(gathered, want) else ["all_gather"])


def test_every_collective_can_be_asynchronous() -> None:
    assert launch(all_kinds_in_flight, 3) == [[]] * 3


def not_yet_completed() -> tuple[bool, bool, bool]:
    """The peer calls only when it is told that this rank has looked at `is_completed`."""
    rank, side = dist.get_rank(), dist.new_group([0, 1])
    tensor = data(rank, 10)
    if rank == 0:
        work = started(minidist.all_reduce(tensor, async_op=True))
        early = work.is_completed()
        dist.barrier(side)
    else:
        dist.barrier(side)
        early, work = False, started(minidist.all_reduce(tensor, async_op=True))
    work.wait()
    return early, work.is_completed(), same(tensor, all_reduced(2, 10))


def test_is_completed_only_when_it_is() -> None:
    assert launch(not_yet_completed, 2) == [(False, True, True)] * 2


def waits_its_turn() -> list[str]:
    """Rank 0 calls asynchronously what the others call synchronously, and then all of them do."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensors = [data(rank, size) for size in (4000, 40, 400)]
    works = [minidist.all_reduce(t, async_op=rank == 0) for t in tensors[:2]]
    minidist.all_reduce(tensors[2])
    wrong = [f"{i}: {w}" for i, w in enumerate(works) if (w is not None) != (rank == 0)]
    wrong += [] if all(w is None or w.is_completed() for w in works) else ["it overtook them"]
    return wrong + [f"{t}" for t in tensors if not same(t, all_reduced(ranks, len(t)))]


def test_a_synchronous_call_waits_behind_asynchronous_ones() -> None:
    assert launch(waits_its_turn, 3) == [[]] * 3


def nobody_waits() -> bool:
    """A tensor and its Work are dropped while in flight; what comes later is right."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for _ in range(20):
        minidist.all_reduce(torch.ones(3000), async_op=True)
    minidist.all_reduce(tensor := data(rank, 9))
    return same(tensor, all_reduced(ranks, 9))


def test_a_work_may_be_dropped() -> None:
    assert launch(nobody_waits, 2) == [True, True]


def errors_at_wait() -> tuple[list[str], bool]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shapes_differ = torch.ones(3 + rank)
    first = started(minidist.all_reduce(shapes_differ, async_op=True))
    leaf = torch.ones(3, requires_grad=rank == 1)
    second = started(minidist.all_reduce(leaf, async_op=True, check=True))
    third = started(minidist.all_reduce(tensor := data(rank, 8), async_op=True))
    said = []
    for work in (second, first, first):  # the second wait raises again
        try:
            work.wait()
            said.append("nothing")
        except ValueError as error:
            kind = "mismatch" if isinstance(error, MismatchError) else "own"
            said.append(f"{kind} {error}")
    third.wait()
    return said, first.is_completed() and same(tensor, all_reduced(ranks, 8))


def test_errors_are_raised_at_wait_and_the_group_stays_usable() -> None:
    said, fine = zip(*launch(errors_at_wait, 2), strict=True)
    assert fine == (True, True)
    grad = "tensor: requires grad, but is written in place"
    shapes = "mismatch all_reduce: the ranks disagree on tensor's shape: "
    for rank, start in enumerate(["mismatch all_reduce: on rank 1", "own rank 1: all_reduce"]):
        second, first, again = said[rank]
        assert second.startswith(f"{start}: {grad}")
        assert first == again == f"{shapes}rank 0 passed (3,); rank 1 passed (4,)"


def two_groups_crossed() -> bool:
    """Rank 0 starts A then B, rank 1 B then A: with one queue for both they would never end."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensors = [data(rank, 1000), data(rank, 333)]
    order = (0, 1) if rank == 0 else (1, 0)
    works = [
        started(minidist.all_reduce(tensors[i], group=groups[i], async_op=True)) for i in order
    ]
    for work in works:
        work.wait()
    return all(same(t, all_reduced(2, len(t))) for t in tensors)


def test_groups_do_not_wait_for_each_other() -> None:
    assert launch(two_groups_crossed, 2, timeout=20) == [True, True]


def sub_groups() -> list[str]:
    """Disjoint groups at once; ranks of a group in another order than outside it."""
    rank, wrong = dist.get_rank(), []
    for members in ([[0, 3, 5], [2, 1], [4]], [[5, 0, 3], [1, 4, 2]]):
        groups = [dist.new_group(ranks, sort_ranks=False) for ranks in members]
        mine = next(i for i, ranks in enumerate(members) if rank in ranks)
        group, ranks = groups[mine], members[mine]
        me, n = ranks.index(rank), len(ranks)
        wholes = [data(r, (n, 4)) for r in ranks]
        for algorithm in ALGORITHMS:
            tensor = wholes[me].clone()
            minidist.all_reduce(tensor, group=group, algorithm=algorithm)
            wrong += [] if same(tensor, reduced(wholes)) else [f"all_reduce {algorithm} {ranks}"]
        part, whole = torch.empty(4), torch.empty(n, 4)
        minidist.reduce_scatter_tensor(part, wholes[me].clone(), group=group)
        wrong += [] if same(part, reduced(wholes)[me]) else [f"reduce_scatter {ranks}"]
        minidist.all_gather_into_tensor(whole, data(rank, 4), group=group)
        want = torch.stack([data(r, 4) for r in ranks])
        wrong += [] if same(whole, want) else [f"all_gather {ranks}"]
    return wrong


def test_sub_groups_at_once_and_in_any_order_of_ranks() -> None:
    assert launch(sub_groups, 6) == [[]] * 6


def outsiders() -> list[str]:
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        return []
    said, tensor = [], torch.ones(2)
    for call in (
        lambda: minidist.all_reduce(tensor, group=group),
        lambda: minidist.all_reduce(tensor, group=group, async_op=True, check=False),
        lambda: minidist.reduce_scatter_tensor(tensor[:1], tensor, group=group),
        lambda: minidist.all_gather_into_tensor(tensor, tensor[:1], group=group),
        lambda: minidist.broadcast(tensor, 0, group),
        lambda: minidist.reduce(tensor, 0, group=group),
        lambda: minidist.gather(tensor, dst=0, group=group),
        lambda: minidist.scatter(tensor, src=0, group=group, async_op=True),
        lambda: minidist.all_gather([tensor, tensor], tensor, group),
        lambda: minidist.reduce_scatter(tensor, [tensor, tensor], group=group),
        lambda: minidist.all_to_all([tensor], [tensor], group),
        lambda: minidist.all_to_all_single(tensor, tensor, group=group),
        lambda: minidist.ring_shift(tensor, group=group),
        lambda: minidist.barrier(group, check=False),
    ):
        with pytest.raises(ValueError, match="not a member") as caught:
            call()
        said.append(str(caught.value))
    return said


def test_a_rank_outside_the_group_is_told_so() -> None:
    names = ["all_reduce", "all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"]
    names += ["broadcast", "reduce", "gather", "scatter", "all_gather", "reduce_scatter"]
    names += ["all_to_all", "all_to_all_single", "ring_shift", "barrier"]
    said = [f"rank 1: {name}: group: this rank is not a member of it" for name in names]
    assert launch(outsiders, 3) == [[], said, []]


def collective_and_message() -> tuple[float, float]:
    """The caller's own messages in the same group do not get into a collective on its way."""
    rank, ours, theirs = (
        dist.get_rank(),
        torch.ones(2) * (dist.get_rank() + 1),
        torch.full((2,), 7.0),
    )
    if rank == 0:
        time.sleep(0.2)  # so that rank 1 receives while its collective waits
    works = [all_reduce(ours if i == 0 else torch.ones(2), async_op=True) for i in range(4)]
    if rank == 0:
        dist.send(theirs, 1)
    else:
        theirs.zero_()
        dist.recv(theirs, 0)
    for work in works:
        assert work is not None
        work.wait()
    return ours[0].item(), theirs[0].item()


def test_messages_of_the_caller_are_kept_apart() -> None:
    assert launch(collective_and_message, 2) == [(3.0, 7.0)] * 2


def a_failed_group_is_forgotten() -> int:
    group = dist.new_group([0, 1])
    work = all_reduce(torch.ones(2, requires_grad=True), group=group, async_op=True)
    assert work is not None
    with contextlib.suppress(ValueError):
        work.wait()
    del work
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return len(minidist.collectives.runtime.work._queues)


def test_a_failed_call_does_not_keep_its_group_alive() -> None:
    assert launch(a_failed_group_is_forgotten, 2) == [0, 0]


def futures() -> tuple[bool, bool, str]:
    """torch's idiom; a future taken after the end; and the future of a call that fails."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    work = started(minidist.all_reduce(tensor := data(rank, 5), async_op=True))
    half = work.get_future().then(lambda done: done.value()[0] / 2).wait()
    right = torch.equal(half, all_reduced(ranks, 5) / 2)
    work.wait()
    (late,) = work.get_future().wait()
    bad = torch.ones(1, requires_grad=True)
    with pytest.raises(Exception, match="requires grad") as caught:
        started(minidist.all_reduce(bad, async_op=True)).get_future().wait()
    return right, late is tensor, type(caught.value).__name__


def test_a_work_has_torchs_future() -> None:
    assert launch(futures, 2) == [(True, True, "ValueError")] * 2


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


def test_threads_of_one_rank_take_turns_in_a_group() -> None:
    assert launch(from_many_threads, 2) == [[True, True]] * 2
