"""Schedules on real ranks: how messages are cut, counted and landed, and what that needs."""

import os
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import minidist
from minidist import RankError, launch
from minidist.collectives.runtime import executor as execute
from minidist.collectives.runtime.executor import Sent, program
from minidist.errors import ScheduleError
from minidist.schedule import algorithms
from minidist.schedule import program as plan
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from minidist.schedule.program import WINDOW
from minidist.schedule.schedule import Schedule, Send, Step, bounds
from minidist.schedule.simulate import traffic
from tests.support.collectives import all_reduced, data, same

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


def sizes(ranks: int) -> list[int]:
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 31, 1000})


def local_of(ranks: int) -> int:
    """Ranks on a node, for what is hierarchical."""
    return 2 if ranks % 2 == 0 else ranks


def schedule_of(name: str, ranks: int) -> Schedule:
    options = {"local": local_of(ranks)} if name == "hierarchical" else {}
    return ALL_REDUCE[name](ranks, **options)


def record_all(check: bool) -> dict[tuple[str, int], list[Sent]]:
    rank, ranks, logs = dist.get_rank(), dist.get_world_size(), {}
    for name in ALL_REDUCE:
        options = {"algorithm": name, "local_ranks": local_of(ranks), "check": check}
        for size in sizes(ranks):
            with minidist.record() as log:
                minidist.all_reduce(data(rank, size, torch.float64), **options)
            logs[name, size] = log
    return logs


@pytest.mark.claim("B3")
@pytest.mark.claim("B4")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_recorded_traffic_is_that_of_the_simulator(ranks: int) -> None:
    results = launch(record_all, ranks, False)
    for name in ALL_REDUCE:
        schedule = schedule_of(name, ranks)
        for size in sizes(ranks):
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


def record_halves() -> dict[str, list[Sent]]:
    ranks, logs = dist.get_world_size(), {}
    for name in REDUCE_SCATTER:
        with minidist.record() as logs[f"reduce-scatter {name}"]:
            minidist.reduce_scatter_tensor(torch.ones(3), torch.ones(3 * ranks), algorithm=name)
    for name in ALL_GATHER:
        with minidist.record() as logs[f"all-gather {name}"]:
            minidist.all_gather_into_tensor(torch.ones(3 * ranks), torch.ones(3), algorithm=name)
    return logs


@pytest.mark.parametrize("ranks", [1, 4, 5])
def test_recorded_traffic_of_each_reduce_scatter_and_all_gather(ranks: int) -> None:
    results = launch(record_halves, ranks)
    tables = {"reduce-scatter": REDUCE_SCATTER, "all-gather": ALL_GATHER}
    for kind, name in ((kind, name) for kind, table in tables.items() for name in table):
        logs = [result[f"{kind} {name}"] for result in results]
        assert counted(logs) == planned(tables[kind][name](ranks), 3 * ranks, itemsize=4)


def test_messages_of_the_check_are_not_recorded() -> None:
    assert launch(record_all, 3, True) == launch(record_all, 3, False)


def record_others() -> list[list[Sent]]:
    ranks, logs = dist.get_world_size(), []
    with minidist.record() as outer:
        minidist.reduce_scatter_tensor(torch.ones(5), torch.ones(5 * ranks))
        with minidist.record() as inner:
            minidist.all_gather_into_tensor(torch.ones(ranks, 3), torch.ones(3))
        work = minidist.all_reduce(torch.ones(7), async_op=True)
    minidist.all_reduce(torch.ones(2))
    assert work is not None
    work.wait()
    return [*logs, outer, inner]


def test_reduce_scatter_and_all_gather_are_recorded_too_and_records_nest() -> None:
    outer, inner = zip(*launch(record_others, 4), strict=True)
    both = planned(algorithms.ring_reduce_scatter(4), 20, 4)
    both += planned(algorithms.ring_all_reduce(4), 7, 4)
    assert counted(outer) == both
    assert counted(inner) == planned(algorithms.ring_all_gather(4), 12, 4)


# Large messages travel as several.


BY_CHUNKS = ("double_tree", "naive", "recursive_doubling", "ring", "tree")  # no runs of chunks


def in_pieces() -> list[tuple[str, int, bool, list[Sent]]]:
    """Chunks of 1 to WINDOW + 3 pieces of at most 16 bytes, all but one of them uneven."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan.MAX_MESSAGE = 16
    results = []
    for name in BY_CHUNKS:
        for pieces in range(1, WINDOW + 4):
            for chunk in (2 * pieces - 1, 2 * pieces):  # int64: two to a piece
                chunks = ALL_REDUCE[name](ranks).chunks
                size = chunk * chunks - (chunk % 2 if chunks > 1 else 0)
                tensor = data(rank, size, torch.int64)
                with minidist.record() as log:
                    minidist.all_reduce(tensor, algorithm=name, check=False)
                right = same(tensor, all_reduced(ranks, size, torch.int64))
                results.append((name, pieces, right, log))
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_pieces_from_one_to_more_than_are_in_flight(ranks: int) -> None:
    results = launch(in_pieces, ranks)
    for per_rank in zip(*results, strict=True):
        name, pieces = per_rank[0][:2]
        assert all(right for _, _, right, _ in per_rank), (name, pieces)
        logs = [log for *_, log in per_rank]
        messages = Counter(sent[:4] for log in logs for sent in log)
        assert set(messages.values()) <= {pieces, pieces - 1}, "the last chunks may be shorter"
        assert ranks == 1 or max(messages.values()) == pieces
        assert all(sent.nbytes <= 16 for log in logs for sent in log)


def hierarchical(local: int) -> list[str]:
    """Runs of chunks, whole and in pieces; the transport counts what the schedule says."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = algorithms.hierarchical_all_reduce(ranks, local=local)
    mine, wrong = program(schedule, rank), []
    for piece in (1 << 20, 64, 4):
        plan.MAX_MESSAGE = piece
        for size in (0, 1, ranks - 1, ranks + 1, 2 * ranks + 3, 101):
            tensor, log = data(rank, size), list[Sent]()
            execute.execute(mine, tensor, torch.Tensor.add_, log=log)
            wrong += [] if same(tensor, all_reduced(ranks, size)) else [f"{piece} {size}"]
            traffic = planned(schedule, size, 4)
            ours = Counter({key: size for key, size in traffic.items() if key[1] == rank})
            wrong += [] if counted([log]) == ours else [f"{piece} {size}: {log}"]
    return wrong


@pytest.mark.parametrize(("ranks", "local"), [(4, 2), (8, 2), (8, 4), (4, 1), (4, 4)])
def test_hierarchical_runs_as_planned(ranks: int, local: int) -> None:
    assert launch(hierarchical, ranks, local) == [[]] * ranks


# What is refused, what it costs in memory, and what happens when a peer is gone.


def test_a_racing_schedule_is_refused_before_it_runs() -> None:
    race = [Step.from_sends([Send(0, 1, 0, False), Send(1, 0, 0, False)])]
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


def allocated() -> dict[str, list[int]]:
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
    return taken


def test_all_reduce_needs_a_window_of_pieces_and_one_beside_the_tensor() -> None:
    results = launch(allocated, 2)
    first = BY_CHUNKS[0]
    assert 0 < max(taken[first][0] for taken in results) <= (WINDOW + 1) * 1024
    for taken in results:
        for name in BY_CHUNKS:
            large, small = taken[name]
            assert large <= (WINDOW + 1) * 1024, name
            assert small == 0, f"{name}: the inboxes of earlier calls are kept"
    copy = 400_000
    for taken in results:
        assert copy <= taken["reduce_scatter"][0] <= copy + WINDOW * 1024


def holders() -> list[int]:
    """How many hold on to a tensor's memory: before and after calls, in and out of a collective."""
    tensor = torch.ones(1000)
    seen = [torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)]
    for algorithm in ("ring", "recursive_doubling"):
        minidist.all_reduce(tensor, algorithm=algorithm, check=False)
        seen.append(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
    mine = program(algorithms.ring_all_reduce(2), dist.get_rank())
    execute.execute(mine, tensor, torch.Tensor.add_)
    assert execute._late[dist.group.WORLD], "handles are kept"
    return [*seen, torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)]


def test_handles_that_are_kept_hold_no_memory() -> None:
    for seen in launch(holders, 2):
        assert len(set(seen)) == 1, seen


def survive(folder: str) -> None:
    """Rank 1 of the group, rank 2 outside it, dies; the others write down what they saw."""
    rank = dist.get_rank()
    group = dist.new_group([0, 2, 3], timeout=timedelta(seconds=6))
    if rank == 1:
        return

    def twice() -> None:
        for _ in range(2):
            minidist.all_reduce(torch.ones(1000), group=group, check=False)
            if rank == 2:
                os._exit(7)

    with pytest.raises(minidist.CommunicationError) as caught:
        twice()
    Path(folder, str(rank)).write_text(str(caught.value))


def test_a_dead_peer_is_an_error_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["minidist.launch.launch"], "GRACE", 30
    )  # let all survivors report
    with pytest.raises(RankError, match="rank 2 left with exit code 7"):
        launch(survive, 4, str(tmp_path), timeout=60)
    start = "rank {}: ring all-reduce, step {} of 4: a message to rank {} or from rank {} failed: "
    said = {rank: (tmp_path / str(rank)).read_text() for rank in (0, 3)}
    assert any(said[0].startswith(start.format(0, step, 2, 3)) for step in range(1, 5)), said
    assert any(said[3].startswith(start.format(3, step, 0, 2)) for step in range(1, 5)), said


def stay_away() -> str:
    """The group's time runs out while a peer is alive and does not come."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    said = ""
    if dist.get_rank() == 0:
        with pytest.raises(minidist.CommunicationError) as caught:
            minidist.all_reduce(torch.ones(1000), group=group, algorithm="tree", check=False)
        said = str(caught.value)
    dist.barrier()
    return said


def test_a_peer_that_stays_away_is_an_error_within_the_groups_time() -> None:
    assert launch(stay_away, 2)[0].startswith(
        "rank 0: tree all-reduce, step 1 of 2: a message from rank 1 failed: "
    )
