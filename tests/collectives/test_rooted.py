"""broadcast, reduce, gather and scatter between real ranks, against what one process computes."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import launch
from minidist.collectives.runtime.executor import Sent
from minidist.schedule.algorithms import BROADCAST, GATHER, REDUCE, SCATTER, SEGMENT, segments
from minidist.schedule.schedule import Schedule
from minidist.schedule.simulate import traffic
from tests.support.collectives import DTYPES, NO_MEANING, OPS, data, reduced, same

WORLDS = [1, 2, 3, 4, 5, 8]
MARK = -77

Wrong = list[str]
Logs = dict[tuple[str, str, int, int], list[Sent]]  # collective, algorithm, root, numel


def shapes(ranks: int) -> list[tuple[int, ...]]:
    flat = sorted({0, 1, ranks - 1, ranks, ranks + 1, 250})
    return [*((n,) for n in flat), (2, 3)]


def roots(ranks: int) -> list[int]:
    return sorted({0, ranks // 2, ranks - 1})


def cases(ranks: int) -> Iterator[tuple[tuple[int, ...], torch.dtype, int]]:
    """(shape, dtype, root): all sizes and all dtypes, and the roots by turns."""
    known = roots(ranks)
    every = [(shape, torch.float32) for shape in shapes(ranks)]
    every += [((2 * ranks + 1,), dtype) for dtype in DTYPES]
    for number, (shape, dtype) in enumerate(every):
        yield shape, dtype, known[number % len(known)]
    yield from (((7,), torch.float32, root) for root in range(ranks))


def laid_out(like: torch.Tensor, way: int) -> torch.Tensor:
    """A tensor like this one, in memory full of MARK; every second one is not contiguous."""
    if not way % 2:
        return torch.full_like(like, MARK if like.dtype != torch.uint8 else 77)
    room = torch.full((*like.shape[::-1], 2), 1, dtype=like.dtype)
    return room[..., 0].permute(*reversed(range(like.dim())))


def every_broadcast() -> tuple[Wrong, Logs]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, logs = [], {}
    for algorithm in BROADCAST:
        for way, (shape, dtype, root) in enumerate(cases(ranks)):
            tensor = laid_out(data(root, shape, dtype), way)
            tensor.copy_(data(rank, shape, dtype))
            with minidist.record() as log:
                result = minidist.broadcast(tensor, root, algorithm=algorithm, check=False)
            right = result is None and same(tensor, data(root, shape, dtype))
            wrong += [] if right else [f"{algorithm} {shape} {dtype} from {root}: {tensor}"]
            if dtype == torch.float32:
                logs["broadcast", algorithm, root, tensor.numel()] = log
    return wrong, logs


def every_reduce() -> tuple[Wrong, Logs]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, logs = [], {}
    for algorithm in REDUCE:
        for way, (shape, dtype, root) in enumerate(cases(ranks)):
            for op in OPS if dtype != torch.float32 or way == 3 else ("SUM",):
                if (dtype, op) in NO_MEANING:
                    continue
                parts = [data(r, shape, dtype, op) for r in range(ranks)]
                tensor = laid_out(parts[rank], way)
                tensor.copy_(parts[rank])
                with minidist.record() as log:
                    minidist.reduce(tensor, root, OPS[op], algorithm=algorithm, check=False)
                want = reduced(parts, op) if rank == root else parts[rank]
                right = same(tensor, want)
                wrong += [] if right else [f"{algorithm} {shape} {dtype} {op} to {root}: {tensor}"]
                if dtype == torch.float32:
                    logs["reduce", algorithm, root, tensor.numel()] = log
    return wrong, logs


def every_gather() -> tuple[Wrong, Logs]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, logs = [], {}
    for algorithm in GATHER:
        for way, (shape, dtype, root) in enumerate(cases(ranks)):
            parts = [data(r, shape, dtype) for r in range(ranks)]
            slots = [laid_out(part, way + r) for r, part in enumerate(parts)]
            tensor = laid_out(parts[rank], way + 1)
            tensor.copy_(parts[rank])
            given = slots if rank == root else None
            with minidist.record() as log:
                minidist.gather(tensor, given, root, algorithm=algorithm, check=False)
            fine = rank != root or all(map(same, slots, parts))
            fine = fine and same(tensor, parts[rank])
            wrong += [] if fine else [f"{algorithm} {shape} {dtype} to {root}: {slots}"]
            if dtype == torch.float32:
                logs["gather", algorithm, root, ranks * tensor.numel()] = log
    return wrong, logs


def every_scatter() -> tuple[Wrong, Logs]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, logs = [], {}
    for algorithm in SCATTER:
        for way, (shape, dtype, root) in enumerate(cases(ranks)):
            parts = [data(100 * root + r, shape, dtype) for r in range(ranks)]
            given = [laid_out(part, way + r) for r, part in enumerate(parts)]
            for each, part in zip(given, parts, strict=True):
                each.copy_(part)
            tensor = laid_out(parts[rank], way + 1)
            mine = given if rank == root else None
            with minidist.record() as log:
                minidist.scatter(tensor, mine, root, algorithm=algorithm, check=False)
            fine = same(tensor, parts[rank]) and all(map(same, given, parts))
            wrong += [] if fine else [f"{algorithm} {shape} {dtype} from {root}: {tensor}"]
            if dtype == torch.float32:
                logs["scatter", algorithm, root, ranks * tensor.numel()] = log
    return wrong, logs


def everything() -> tuple[Wrong, Logs]:
    results = [every_broadcast(), every_reduce(), every_gather(), every_scatter()]
    logs: Logs = {}
    for _, more in results:
        logs |= more
    return [each for wrong, _ in results for each in wrong], logs


def schedule_of(name: str, algorithm: str, root: int, ranks: int) -> Schedule:
    tables = {"broadcast": BROADCAST, "reduce": REDUCE, "gather": GATHER, "scatter": SCATTER}
    return tables[name][algorithm](ranks, root=root)


@pytest.mark.parametrize("ranks", WORLDS)
def test_values_of_any_size_dtype_layout_and_root_and_the_traffic(ranks: int) -> None:
    results = launch(everything, ranks)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    logs = [logs for _, logs in results]
    assert len(logs[0]) > 4 * len(roots(ranks))
    for key in logs[0]:
        name, algorithm, root, numel = key
        want = traffic(schedule_of(name, algorithm, root, ranks), numel)
        assert [len(log[key]) for log in logs] == want.sent_messages.tolist(), key
        sent = [sum(each.nbytes for each in log[key]) for log in logs]
        assert sent == want.sent_bytes.tolist(), key
        received = [
            sum(each.nbytes for log in logs for each in log[key] if each.dst == r)
            for r in range(ranks)
        ]
        assert received == want.received_bytes.tolist(), key


def a_long_pipeline() -> tuple[bool, int]:
    rank, size = dist.get_rank(), 5 * SEGMENT // 4
    tensor = data(rank, size)
    with minidist.record() as log:
        minidist.broadcast(tensor, 1, algorithm="chain")
    return same(tensor, data(1, size)), len(log)


def test_a_chain_passes_on_segments() -> None:
    assert [segments(n) for n in (0, SEGMENT, 5 * SEGMENT, 10**12)] == [1, 1, 4, 64]
    right, sent = zip(*launch(a_long_pipeline, 3), strict=True)
    assert right == (True, True, True)
    assert sent == (0, 4, 4), "ranks stand 1, 2, 0"


def in_a_sub_group() -> Wrong:
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
    assert launch(in_a_sub_group, 4) == [[]] * 4


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
    for algorithm in GATHER:
        minidist.gather(slots[1], slots if root else None, 1, algorithm=algorithm)
        fine = not root or all(map(same, slots, [data(r, 3) for r in range(ranks)]))
        wrong += [] if fine else [f"gather in place, {algorithm}: {slots}"]
    given = [data(20 + r, 3) for r in range(ranks)]
    for algorithm in SCATTER:
        tensor = given[1] if root else torch.empty(3)
        minidist.scatter(tensor, given if root else None, 1, algorithm=algorithm)
        wrong += [] if same(tensor, data(20 + rank, 3)) else [f"scatter in place, {algorithm}"]
    return wrong


def test_what_is_only_read_and_what_is_in_place() -> None:
    assert launch(only_read, 3) == [[]] * 3
