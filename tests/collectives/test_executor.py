"""Schedules on real ranks: how messages are cut, counted and landed, and what that needs."""

import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import minidist
from minidist import launch
from minidist.collectives.runtime import executor as execute
from minidist.collectives.runtime.executor import Sent
from minidist.errors import ScheduleError
from minidist.schedule import program as plan
from minidist.schedule.algorithms import ALL_REDUCE, SEGMENT, segments
from minidist.schedule.program import WINDOW, program
from minidist.schedule.schedule import Schedule, Send, bounds
from minidist.schedule.simulate import traffic
from tests.support.collectives import data
from tests.support.schedules import step_of

Counts = Counter[tuple[int, int, int, int]]  # (step, src, dst, chunk) → bytes


def planned(schedule: Schedule, numel: int, itemsize: int) -> Counts:
    """The bytes of each message, read off the schedule."""
    edge = bounds(numel, schedule.chunks).tolist()
    count: Counts = Counter()
    for number, step in enumerate(schedule):
        for send in step:
            size = (edge[send.chunk + send.width] - edge[send.chunk]) * itemsize
            if size:
                count[number, send.src, send.dst, send.chunk] = size
    return count


def counted(logs: list[list[Sent]]) -> Counts:
    count: Counts = Counter()
    for sent in (sent for log in logs for sent in log):
        count[sent[:4]] += sent.nbytes
    return count


# What is recorded against what the schedule says.

LARGE = 5 * SEGMENT // 8  # float64: the double tree passes them on in several segments


def sizes(ranks: int) -> list[int]:
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 31, 1000})


def local_of(ranks: int) -> int:
    """Ranks on a node, for what is hierarchical."""
    return 2 if ranks % 2 == 0 else ranks


def schedule_of(name: str, ranks: int, size: int) -> Schedule:
    options = {
        "hierarchical": {"local": local_of(ranks)},
        "double_tree": {"segments": segments(8 * size)},
    }.get(name, {})
    return ALL_REDUCE[name](ranks, **options)


def record_all(check: bool) -> dict[tuple[str, int], list[Sent]]:
    """Messages of the check are not recorded."""
    rank, ranks, logs = dist.get_rank(), dist.get_world_size(), {}
    os.environ["LOCAL_WORLD_SIZE"] = str(local_of(ranks))
    for name in ALL_REDUCE:
        for size in sizes(ranks):
            with minidist.record() as log:
                minidist.all_reduce(data(rank, size, torch.float64), algorithm=name, check=check)
            logs[name, size] = log
    with minidist.record() as logs["double_tree", LARGE]:
        tensor = torch.ones(LARGE, dtype=torch.float64)
        minidist.all_reduce(tensor, algorithm="double_tree", check=check)
    with minidist.record() as logs["ring", 7]:  # it belongs to the record in which it was called
        work = minidist.all_reduce(data(rank, 7, torch.float64), async_op=True, check=check)
    minidist.all_reduce(torch.ones(2), check=check)
    assert work is not None
    work.wait()
    return logs


@pytest.mark.claim("B3")
@pytest.mark.claim("B4")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_recorded_traffic_is_that_of_the_simulator(ranks: int) -> None:
    results = launch(record_all, ranks, ranks == 3)
    for name, size in results[0]:
        schedule = schedule_of(name, ranks, size)
        logs = [result[name, size] for result in results]
        want = traffic(schedule, size, itemsize=8)
        assert [len(log) for log in logs] == want.sent_messages.tolist(), (name, size)
        assert [sum(s.nbytes for s in log) for log in logs] == want.sent_bytes.tolist()
        received = [sum(s.nbytes for log in logs for s in log if s.dst == r)
                    for r in range(ranks)]  # fmt: skip
        assert received == want.received_bytes.tolist()
        assert counted(logs) == planned(schedule, size, itemsize=8)
        assert all(s.src == r and s.nbytes for r, log in enumerate(logs) for s in log)
        if name == "ring":
            assert all(s.dst == (s.src + 1) % ranks for log in logs for s in log)
    assert [segments(n) for n in (0, SEGMENT, 8 * LARGE, 10**12)] == [1, 1, 4, 64]


# What is refused, what it costs in memory, and what happens when a peer is gone.

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
