"""Sub-groups, the numbers of roots, and barriers."""

import time
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from benchmarks.checks.collectives import CALLS, Tensors, Variant
from minidist import launch
from tests.support.collectives import data, reduced, same

ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


def asynchronously(members: list[int], globally: bool) -> list[str]:
    """Every collective at once, waited for in the other order; roots by either of their numbers."""
    rank, group = dist.get_rank(), dist.new_group(members, sort_ranks=False)
    if rank not in members:
        return []
    flying = []
    for name, arguments in CALLS.items():
        tensors = Tensors(Variant(5, torch.float32, True, True))
        tensors.rank, tensors.ranks, tensors.root = members.index(rank), len(members), 1
        given: list[Any] = list(arguments(tensors))
        options: dict[str, Any] = {"group": group, "async_op": True}
        if name in ROOTS:
            argument, root = ROOTS[name], given.pop()
            options |= {argument: members[root]} if globally else {f"group_{argument}": root}
        flying.append((name, tensors, getattr(minidist, name)(*given, **options)))
    for *_, work in reversed(flying):
        work.wait()
    return [f"{name} {members}" for name, tensors, _ in flying if not tensors.right()]


def in_every_group() -> list[str]:
    ways = product([[0, 1, 2, 3], [3, 0, 2]], (True, False))
    return [each for way in ways for each in asynchronously(*way)]


def test_asynchronous_calls_with_roots_by_both_numbers() -> None:
    assert launch(in_every_group, 4) == [[]] * 4


def sub_groups() -> tuple[list[str], list[str]]:
    """Disjoint groups at once, with ranks in any order; then what is no group of this rank's."""
    rank, wrong, said = dist.get_rank(), [], []
    for members in ([[0, 3, 5], [2, 1], [4]], [[5, 0, 3], [1, 4, 2]]):
        groups = [dist.new_group(ranks, sort_ranks=False) for ranks in members]
        mine = next(i for i, ranks in enumerate(members) if rank in ranks)
        group, ranks = groups[mine], members[mine]
        parts = [data(r, 12) for r in ranks]
        for algorithm in ("ring", "tree", "naive", "shared_memory", "auto"):
            tensor = data(rank, 12)
            minidist.all_reduce(tensor, group=group, algorithm=algorithm)
            wrong += [] if same(tensor, reduced(parts)) else [f"all_reduce {algorithm} {ranks}"]
    for call in (
        lambda: minidist.all_reduce(tensor, group=groups[mine - 1], async_op=True, check=False),
        lambda: minidist.broadcast(tensor, 0, groups[mine - 1]),
        lambda: minidist.barrier([0, 1]),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        said.append(str(caught.value))
    return wrong, said


def test_sub_groups_at_once_in_any_order_of_ranks_and_what_is_no_group_of_this_rank() -> None:
    outside, inside = "group: this rank is not a member of it", "group: expected a process group, "
    for rank, (wrong, (first, second, third)) in enumerate(launch(sub_groups, 6)):
        assert wrong == []
        assert first == f"rank {rank}: all_reduce: {outside}"
        assert second == f"rank {rank}: broadcast: {outside}"
        assert third.startswith(f"rank {rank}: barrier: {inside}")


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


def test_nobody_leaves_a_barrier_before_all_have_come() -> None:
    results = launch(one_waits, 5)
    for late in range(2 * 5):
        came = [times[2 * late] for times in results]
        left = [times[2 * late + 1] for times in results]
        assert max(came) <= min(left)
