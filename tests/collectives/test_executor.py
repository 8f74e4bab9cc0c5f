"""Schedules on real ranks: what is refused, what memory they take, and a peer that is late."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import minidist
from minidist import launch
from minidist.collectives.runtime import executor as execute
from minidist.errors import ScheduleError
from minidist.schedule import program as plan
from minidist.schedule.program import WINDOW, program
from minidist.schedule.schedule import Schedule, Send
from tests.support.schedules import step_of

BY_CHUNKS = ("double_tree", "naive", "recursive_doubling", "ring", "tree")  # no runs of chunks


def test_a_racing_schedule_is_refused_before_it_runs() -> None:
    race = [step_of([Send(0, 1, 0, False), Send(1, 0, 0, False)])]
    with pytest.raises(ScheduleError, match="race"):
        program(Schedule("race", "all_reduce", 2, 1, lambda: race), 0)


class Allocations(TorchDispatchMode):
    """Adds up the bytes of new memory that torch operations take."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            self.bytes += storage.nbytes() if storage.data_ptr() not in known else 0
        return result


def memory() -> tuple[dict[str, list[int]], list[int]]:
    """Bytes taken by calls; and how many hold on to a tensor's memory, before and after them."""
    plan.MAX_MESSAGE, taken = 1024, {}
    minidist.all_reduce(torch.ones(3), check=False)  # the first call tries if torch has a kernel
    tensors = [torch.ones(100_000), torch.ones(3)]
    for name in BY_CHUNKS:
        taken[name] = []
        for tensor in tensors:
            with Allocations() as allocations:
                minidist.all_reduce(tensor, algorithm=name, check=False)
            taken[name].append(allocations.bytes)
    part, whole = torch.empty(50_000), torch.ones(100_000)
    with Allocations() as allocations:
        minidist.reduce_scatter_tensor(part, whole, check=False)
    taken["reduce_scatter"] = [allocations.bytes]
    holders = []
    for algorithm in (None, "ring", "recursive_doubling"):
        if algorithm:
            minidist.all_reduce(part, algorithm=algorithm, check=False)
            assert execute._late[dist.group.WORLD], "handles are kept"
        holders.append(torch._C._storage_Use_Count(part.untyped_storage()._cdata))
    return taken, holders


def test_all_reduce_needs_a_window_of_pieces_and_one_beside_the_tensor_and_holds_nothing() -> None:
    results = launch(memory, 2)
    most, copy = (WINDOW + 1) * 1024, 400_000
    assert max(taken[BY_CHUNKS[0]][0] for taken, _ in results) > 0
    for taken, holders in results:
        for name in BY_CHUNKS:
            large, small = taken[name]
            assert large <= most, name
            assert small == 0, f"{name}: the inboxes of earlier calls are kept"
        assert copy <= taken["reduce_scatter"][0] <= copy + WINDOW * 1024
        assert len(set(holders)) == 1, "handles that are kept hold no memory"


def waits_for_a_late_peer() -> str:
    dist.barrier()  # or one may be late to make the group
    group = dist.new_group([0, 2], timeout=timedelta(seconds=5))
    said = ""
    if dist.get_rank() == 0:
        with pytest.raises(minidist.CommunicationError) as caught:
            minidist.all_reduce(torch.ones(1000), group=group, algorithm="tree", check=False)
        said = str(caught.value)
    dist.barrier()
    return said


def test_a_late_peer_is_an_error_that_says_where() -> None:
    said, *_ = launch(waits_for_a_late_peer, 3)
    assert said.startswith("rank 0: tree all-reduce, step 1 of 2: a message from rank 2 failed: ")
