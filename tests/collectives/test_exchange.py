"""Lists, blocks from all to all, shifts and barriers between ranks; blocks may differ in size."""

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import launch
from minidist.collectives.runtime.executor import Sent
from minidist.schedule import algorithms
from minidist.schedule.program import WINDOW
from minidist.schedule.simulate import traffic
from tests.support.collectives import DTYPES, NO_MEANING, OPS, data, reduced, same

WORLDS = [1, 2, 3, 4, 5, 8]

Wrong = list[str]
Log = list[Sent]
Size = Callable[[int, int], int]  # of the block from one rank to another

SIZES: dict[str, Size] = {
    "none": lambda src, dst: 0,
    "one": lambda src, dst: 1,
    "even": lambda src, dst: 250,
    "uneven": lambda src, dst: (3 * src + 5 * dst) % 7,
    "by sender": lambda src, dst: src,
    "by receiver": lambda src, dst: 2 * dst + 1,
}


def block(src: int, dst: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return data(100 * src + dst, size, dtype)


def strided(like: torch.Tensor, way: int) -> torch.Tensor:
    """Room for as much as `like`, every second time with gaps."""
    if way % 2:
        return torch.zeros(3 * like.numel(), dtype=like.dtype)[::3]
    return torch.zeros_like(like)


def filled(value: torch.Tensor, way: int) -> torch.Tensor:
    return strided(value, way).copy_(value)


def every_size_and_dtype() -> list[tuple[Size, torch.dtype]]:
    cases = [(size, torch.float32) for size in SIZES.values()]
    return cases + [(SIZES["uneven"], dtype) for dtype in DTYPES]


def every_all_to_all() -> tuple[Wrong, Log]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong: Wrong = []
    for way, (size, dtype) in enumerate(every_size_and_dtype()):
        gives = [block(rank, d, size(rank, d), dtype) for d in range(ranks)]
        wants = [block(s, rank, size(s, rank), dtype) for s in range(ranks)]
        given = [filled(each, way + d) for d, each in enumerate(gives)]
        got = [strided(each, way + s + 1) for s, each in enumerate(wants)]
        result = minidist.all_to_all(got, given, check=way % 2 == 0)
        fine = result is None and all(map(same, got, wants)) and all(map(same, given, gives))
        wrong += [] if fine else [f"all_to_all {way}: {got}"]
        whole, output = filled(torch.cat(gives), way), strided(torch.cat(wants), way + 1)
        splits = [len(each) for each in wants], [len(each) for each in gives]
        minidist.all_to_all_single(output, whole, *splits, check=way % 2 == 1)
        fine = same(output, torch.cat(wants)) and same(whole, torch.cat(gives))
        wrong += [] if fine else [f"all_to_all_single {way}: {output}"]
    for shape in ((2 * ranks, 3), (0, 3), (ranks, 0), (ranks,)):  # even without being told
        rows = data(rank, shape)
        output = torch.zeros(shape[::-1]).permute(*reversed(range(len(shape))))
        minidist.all_to_all_single(output, rows)
        want = torch.cat([data(r, shape).tensor_split(ranks)[rank] for r in range(ranks)])
        wrong += [] if same(output, want) else [f"all_to_all_single {shape}: {output}"]
    with minidist.record() as log:
        minidist.all_to_all_single(torch.empty(3 * ranks), torch.ones(3 * ranks))
    return wrong, log


def every_list() -> tuple[Wrong, tuple[Log, Log]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong: Wrong = []
    for way, (size, dtype) in enumerate(every_size_and_dtype()):
        parts = [block(r, 0, size(r, 0), dtype) for r in range(ranks)]
        slots = [strided(part, way + r) for r, part in enumerate(parts)]
        tensor = filled(parts[rank], way)
        minidist.all_gather(slots, tensor, check=way % 2 == 0)
        fine = all(map(same, slots, parts)) and same(tensor, parts[rank])
        wrong += [] if fine else [f"all_gather {way}: {slots}"]
        for op in OPS:
            if (dtype, op) in NO_MEANING:
                continue
            every = [[data(100 * r + d, size(0, d), dtype, op) for d in range(ranks)]
                     for r in range(ranks)]  # fmt: skip
            given = [filled(each, way + d) for d, each in enumerate(every[rank])]
            output = strided(every[rank][rank], way + 1)
            minidist.reduce_scatter(output, given, OPS[op], check=way % 2 == 1)
            fine = same(output, reduced([each[rank] for each in every], op))
            fine = fine and all(map(same, given, every[rank]))
            wrong += [] if fine else [f"reduce_scatter {way} {op}: {output}"]
    with minidist.record() as gathered:
        minidist.all_gather([torch.zeros(3) for _ in range(ranks)], torch.ones(3))
    with minidist.record() as scattered:
        minidist.reduce_scatter(torch.zeros(3), [torch.ones(3)] * ranks)
    return wrong, (gathered, scattered)


def every_shift() -> tuple[Wrong, Log]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong: Wrong = []
    for by in (1, 0, -1, 2, ranks, -ranks - 1):
        for way, (size, dtype) in enumerate(((0, torch.float32), (7, torch.bool), (1, torch.half))):
            tensor = filled(data(rank, size, dtype), way)
            minidist.ring_shift(tensor, by)
            fine = same(tensor, data((rank - by) % ranks, size, dtype))
            wrong += [] if fine else [f"ring_shift by {by}, {size} {dtype}: {tensor}"]
    with minidist.record() as log:
        minidist.ring_shift(torch.ones(3))
    return wrong, log


def everything() -> tuple[Wrong, dict[str, Log]]:
    exchanged, all_to_all = every_all_to_all()
    listed, (all_gather, reduce_scatter) = every_list()
    shifted, shift = every_shift()
    logs = {
        "all_to_all": all_to_all,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "shift": shift,
    }
    return exchanged + listed + shifted, logs


@pytest.mark.parametrize("ranks", WORLDS)
def test_values_of_any_size_dtype_and_layout_and_the_traffic(ranks: int) -> None:
    results = launch(everything, ranks)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    schedules = {
        "all_to_all": algorithms.pairwise_all_to_all(ranks),
        "all_gather": algorithms.ring_all_gather(ranks),
        "reduce_scatter": algorithms.ring_reduce_scatter(ranks),
        "shift": algorithms.ring_shift(ranks),
    }
    for name, schedule in schedules.items():
        want = traffic(schedule, 3 * schedule.chunks)
        logs = [logs[name] for _, logs in results]
        assert [len(log) for log in logs] == want.sent_messages.tolist(), name
        assert [sum(each.nbytes for each in log) for log in logs] == want.sent_bytes.tolist()
        sent = sorted(each[:4] for log in logs for each in log)
        planned = [(at, *send[:3]) for at, step in enumerate(schedule) for send in step]
        assert sent == sorted(planned), name


def in_pieces() -> Wrong:
    """Blocks of 1 to WINDOW + 3 pieces, of another size for each rank; late ranks too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    minidist.schedule.program.PIECE, wrong = 16, []
    for most in (1, 2, WINDOW, WINDOW + 3):
        if most % ranks == rank:
            time.sleep(0.01)

        def size(src: int, dst: int, most: int = most) -> int:
            return 4 * most - (src + 2 * dst) % 4

        got = [torch.zeros(size(s, rank)) for s in range(ranks)]
        minidist.all_to_all(got, [block(rank, d, size(rank, d)) for d in range(ranks)])
        fine = all(same(each, block(s, rank, len(each))) for s, each in enumerate(got))
        wrong += [] if fine else [f"all_to_all, {most} pieces: {got}"]
        got = [torch.zeros(size(s, 0)) for s in range(ranks)]
        minidist.all_gather(got, block(rank, 0, size(rank, 0)))
        fine = all(same(each, block(s, 0, len(each))) for s, each in enumerate(got))
        wrong += [] if fine else [f"all_gather, {most} pieces: {got}"]
        output = torch.zeros(size(0, rank))
        minidist.reduce_scatter(output, [block(rank, d, size(0, d)) for d in range(ranks)])
        want = reduced([block(r, rank, len(output)) for r in range(ranks)])
        wrong += [] if same(output, want) else [f"reduce_scatter, {most} pieces: {output}"]
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_blocks_of_several_pieces(ranks: int) -> None:
    assert launch(in_pieces, ranks) == [[]] * ranks


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


def in_a_sub_group() -> Wrong:
    rank, members = dist.get_rank(), [3, 0, 2]
    group = dist.new_group(members, sort_ranks=False)
    if rank == 1:
        return []
    me, wrong = members.index(rank), []
    slots = [torch.zeros(r) for r in members]
    works = [
        minidist.all_gather(slots, data(rank, rank), group, async_op=True),
        minidist.reduce_scatter(
            part := torch.zeros(me), [data(rank, d) for d in range(3)], group=group, async_op=True
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
    wrong += [] if all(map(same, slots, [data(r, r) for r in members])) else ["all_gather"]
    wrong += [] if same(part, reduced([data(r, me) for r in members])) else ["reduce_scatter"]
    wrong += [] if all(map(same, got, [block(s, rank, 2) for s in members])) else ["all_to_all"]
    return wrong + ([] if same(turn, data(members[me - 1], 5)) else ["ring_shift"])


def test_asynchronous_calls_in_a_sub_group() -> None:
    assert launch(in_a_sub_group, 4) == [[]] * 4


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
