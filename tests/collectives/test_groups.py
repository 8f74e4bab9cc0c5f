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


def asynchronously(members: list[int], globally: bool) -> Wrong:
    """Every collective at once, waited for in the other order; roots by either of their numbers."""
    rank, group, n = dist.get_rank(), dist.new_group(members, sort_ranks=False), len(members)
    if rank not in members:
        return []
    me, root, last = members.index(rank), members[1], members[-1]
    src = {"src": root} if globally else {"group_src": 1}
    dst = {"dst": last} if globally else {"group_dst": n - 1}
    slots, gathered, got = ([torch.zeros(4) for _ in members] for _ in range(3))
    part, row, mine, turn = torch.zeros(5), torch.zeros(5), torch.zeros(2), data(rank, 5)
    sums, spread, whole = data(rank, 9), data(rank, (3, 2)).t(), torch.zeros(n, 4)
    rows, hand = data(rank, (n, 5)), [data(7 + r, 2) for r in members]
    both = {"group": group, "async_op": True}
    works = [
        minidist.all_gather(slots, data(rank, 4), **both),
        minidist.all_gather_into_tensor(whole, data(rank, 4), **both),
        minidist.reduce_scatter(part, list(rows), **both),
        minidist.reduce_scatter_tensor(row, rows, **both),
        minidist.all_to_all(got, [block(rank, d, 4) for d in members], **both),
        minidist.ring_shift(turn, **both),
        minidist.broadcast(spread, **src, **both),
        minidist.reduce(sums, **dst, **both),
        minidist.gather(data(rank, 4), gathered if rank == last else None, **dst, **both),
        minidist.scatter(mine, hand if rank == root else None, **src, **both),
        minidist.barrier(**both),
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    fours, nines = ([data(r, size) for r in members] for size in (4, 9))
    summed = reduced([data(r, (n, 5)) for r in members])[me]
    fine = {
        "all_gather": all(map(same, slots, fours)),
        "all_gather_into_tensor": same(whole, torch.stack(fours)),
        "reduce_scatter": same(part, summed),
        "reduce_scatter_tensor": same(row, summed),
        "all_to_all": all(map(same, got, [block(s, rank, 4) for s in members])),
        "ring_shift": same(turn, data(members[me - 1], 5)),
        "broadcast": same(spread, data(root, (3, 2)).t()),
        "reduce": same(sums, reduced(nines) if rank == last else data(rank, 9)),
        "gather": rank != last or all(map(same, gathered, fours)),
        "scatter": same(mine, data(7 + rank, 2)),
    }
    return [name for name, right in fine.items() if not right]


@pytest.mark.parametrize("globally", [True, False])
@pytest.mark.parametrize("members", [[0, 1, 2, 3], [3, 0, 2]], ids=str)
def test_asynchronous_calls_with_roots_by_both_numbers(members: list[int], globally: bool) -> None:
    assert launch(asynchronously, 4, members, globally) == [[]] * 4


def one_waits() -> list[float]:
    """When each rank came to each barrier, and when it left it, with the check and without."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    times = []
    for late in range(2 * ranks):
        time.sleep(0.05 if rank == late % ranks else 0)
        times.append(time.monotonic())
        assert minidist.barrier(check=late < ranks) is None
        times.append(time.monotonic())
    return times


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_nobody_leaves_a_barrier_before_all_have_come(ranks: int) -> None:
    results = launch(one_waits, ranks)
    for late in range(2 * ranks):
        came = [times[2 * late] for times in results]
        left = [times[2 * late + 1] for times in results]
        assert max(came) <= min(left)


def only_read_and_in_place() -> Wrong:
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
    whole = torch.zeros(ranks, 4)
    whole[rank] = data(rank, 4)
    minidist.all_gather(list(whole), whole[rank])
    wrong += [] if same(whole, torch.stack([data(r, 4) for r in range(ranks)])) else ["all_gather"]
    rows = [block(rank, d, 4) for d in range(ranks)]
    minidist.reduce_scatter(rows[rank], rows)
    want = reduced([block(r, rank, 4) for r in range(ranks)])
    return wrong if same(rows[rank], want) else [*wrong, "reduce_scatter"]


def test_what_is_only_read_and_what_is_in_place() -> None:
    assert launch(only_read_and_in_place, 3) == [[]] * 3
