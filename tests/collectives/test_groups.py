"""Sub-groups, roots, barriers, and tensors that are read only or are a rank's own slot."""

import time

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import launch
from tests.support.collectives import data, reduced, same

Wrong = list[str]


def block(src: int, dst: int, size: int) -> torch.Tensor:
    return data(100 * src + dst, size)


def in_place_and_columns() -> Wrong:
    """A rank's own slot may be the tensor itself; columns of a matrix share no memory."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(4, ranks)
    whole[:, rank] = data(rank, 4)
    minidist.all_gather(list(whole.unbind(1)), whole[:, rank])
    want = torch.stack([data(r, 4) for r in range(ranks)], 1)
    wrong = [] if same(whole, want) else ["all_gather"]
    rows = [block(rank, d, 4) for d in range(ranks)]
    minidist.reduce_scatter(rows[rank], rows)
    want = reduced([block(r, rank, 4) for r in range(ranks)])
    wrong += [] if same(rows[rank], want) else ["reduce_scatter"]
    both = torch.zeros(4, 2 * ranks)
    given, got = list(both[:, ::2].unbind(1)), list(both[:, 1::2].unbind(1))
    for dst, each in enumerate(given):
        each.copy_(block(rank, dst, 4))
    minidist.all_to_all(got, given)
    fine = all(same(each, block(src, rank, 4)) for src, each in enumerate(got))
    return wrong if fine else [*wrong, "all_to_all"]


def test_in_place_and_into_columns() -> None:
    assert launch(in_place_and_columns, 3) == [[]] * 3


def all_to_all_in_a_sub_group() -> Wrong:
    rank, members = dist.get_rank(), [3, 0, 2]
    group = dist.new_group(members, sort_ranks=False)
    if rank == 1:
        return []
    me, wrong = members.index(rank), []
    slots = [torch.zeros(4) for _ in members]
    works = [
        minidist.all_gather(slots, data(rank, 4), group, async_op=True),
        minidist.reduce_scatter(
            part := torch.zeros(5), list(data(rank, (3, 5))), group=group, async_op=True
        ),
        minidist.all_to_all(
            got := [torch.zeros(2) for _ in members],
            [block(rank, d, 2) for d in members],
            group,
            async_op=True,
        ),
        minidist.ring_shift(turn := data(rank, 5), group=group, async_op=True),
        minidist.barrier(group, async_op=True),
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    wrong += [] if all(map(same, slots, [data(r, 4) for r in members])) else ["all_gather"]
    wrong += (
        [] if same(part, reduced([data(r, (3, 5)) for r in members])[me]) else ["reduce_scatter"]
    )
    wrong += [] if all(map(same, got, [block(s, rank, 2) for s in members])) else ["all_to_all"]
    return wrong + ([] if same(turn, data(members[me - 1], 5)) else ["ring_shift"])


def test_asynchronous_calls_in_a_sub_group() -> None:
    assert launch(all_to_all_in_a_sub_group, 4) == [[]] * 4


def one_waits(checked: bool) -> list[float]:
    """When each rank came to each barrier, and when it left it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    times = []
    for late in range(ranks):
        time.sleep(0.05 if rank == late else 0)
        times.append(time.monotonic())
        assert minidist.barrier(check=checked) is None
        times.append(time.monotonic())
    return times


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_nobody_leaves_a_barrier_before_all_have_come(ranks: int) -> None:
    for checked in (True, False):
        results = launch(one_waits, ranks, checked)
        for late in range(ranks):
            came = [times[2 * late] for times in results]
            left = [times[2 * late + 1] for times in results]
            assert max(came) <= min(left)


def roots_in_a_sub_group() -> Wrong:
    """Roots are global ranks; the group's own numbers go by another name."""
    rank, members = dist.get_rank(), [3, 1, 2]
    group = dist.new_group(members, sort_ranks=False)
    if rank == 0:
        return []
    wrong = []
    for options in ({"src": 2}, {"group_src": 2}):
        tensor = data(rank, 5)
        minidist.broadcast(tensor, group=group, **options)
        wrong += [] if same(tensor, data(2, 5)) else [f"broadcast {options}"]
        tensor, parts = torch.zeros(4), [data(10 + r, 4) for r in members]
        minidist.scatter(tensor, parts if rank == 2 else None, group=group, **options)
        wrong += [] if same(tensor, data(10 + rank, 4)) else [f"scatter {options}"]
    for options in ({"dst": 3}, {"group_dst": 0}):
        tensor = data(rank, 5)
        minidist.reduce(tensor, group=group, **options)
        want = reduced([data(r, 5) for r in members]) if rank == 3 else data(rank, 5)
        wrong += [] if same(tensor, want) else [f"reduce {options}"]
        slots = [torch.zeros(5) for _ in members] if rank == 3 else []
        minidist.gather(data(rank, 5), slots, group=group, **options)
        fine = rank != 3 or all(map(same, slots, [data(r, 5) for r in members]))
        wrong += [] if fine else [f"gather {options}: {slots}"]
    return wrong


def test_roots_are_global_ranks_in_a_sub_group() -> None:
    assert launch(roots_in_a_sub_group, 4) == [[]] * 4


def asynchronously() -> Wrong:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, sums = data(rank, (3, 2)).t(), data(rank, 9)
    slots = [torch.empty(6) for _ in range(ranks)]
    part = torch.empty(2)
    given = [data(7 + r, 2) for r in range(ranks)]
    works = [
        minidist.broadcast(whole, 1, async_op=True),
        minidist.reduce(sums, 2, async_op=True),
        minidist.gather(data(rank, 6), slots if rank == 0 else None, async_op=True),
        minidist.scatter(part, given if rank == 1 else None, 1, async_op=True),
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    fine = [
        same(whole, data(1, (3, 2)).t()),
        same(sums, reduced([data(r, 9) for r in range(ranks)]) if rank == 2 else data(rank, 9)),
        rank != 0 or all(map(same, slots, [data(r, 6) for r in range(ranks)])),
        same(part, data(7 + rank, 2)),
    ]
    return [f"number {number}" for number, right in enumerate(fine) if not right]


def test_asynchronous_calls() -> None:
    assert launch(asynchronously, 3) == [[]] * 3


def only_read() -> Wrong:
    """What is only read may require grad, or be expanded. Own part and tensor may be the same."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    root, wrong = rank == 1, []
    weight = data(rank, 3).requires_grad_(root)
    minidist.broadcast(weight, 1)
    wrong += [] if same(weight.detach(), data(1, 3)) else ["broadcast of a weight"]
    spread = data(rank, 1).expand(4) if root else torch.empty(4)
    minidist.broadcast(spread, 1)
    wrong += [] if same(spread, data(1, 1).expand(4)) else ["broadcast of an expanded tensor"]
    weight = data(rank, 3).requires_grad_(not root)
    minidist.reduce(weight, 1)
    want = reduced([data(r, 3) for r in range(ranks)]) if root else data(rank, 3)
    wrong += [] if same(weight.detach(), want) else ["reduce of a weight"]
    slots = [torch.zeros(3) for _ in range(ranks)]
    slots[1].copy_(data(rank, 3))
    minidist.gather(slots[1], slots if root else None, 1)
    fine = not root or all(map(same, slots, [data(r, 3) for r in range(ranks)]))
    wrong += [] if fine else [f"gather in place: {slots}"]
    given = [data(20 + r, 3) for r in range(ranks)]
    tensor = given[1] if root else torch.empty(3)
    minidist.scatter(tensor, given if root else None, 1)
    wrong += [] if same(tensor, data(20 + rank, 3)) else ["scatter in place"]
    return wrong


def test_what_is_only_read_and_what_is_in_place() -> None:
    assert launch(only_read, 3) == [[]] * 3
