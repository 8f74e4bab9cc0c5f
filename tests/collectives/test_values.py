"""Every collective between real ranks, against what one process computes, and its traffic.

One table: a collective's cases are its calls, made by every algorithm, on every size, dtype and
root, in memory with gaps and without.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple, cast

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import ReduceOp, launch
from minidist.collectives.runtime.executor import Sent
from minidist.collectives.runtime.work import Work
from minidist.collectives.shared_memory import collectives as in_memory
from minidist.schedule import algorithms
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEGMENT, segments
from minidist.schedule.schedule import Schedule, bounds
from minidist.schedule.traffic import traffic
from tests.support.collectives import DTYPES, NO_MEANING, OPS, bytes_of, data, reduced, same

WORLDS = [1, 2, 3, 5, 8]

LARGE = 5 * SEGMENT // 8  # elements of float64: the double tree passes them on in segments

Tensors = list[torch.Tensor]

# How a collective is called with what it writes and what it only reads.
ARGUMENTS: dict[str, Callable[[Tensors, Tensors], Iterable[object]]] = {
    "all_gather": lambda out, given: (out, *given),
    "all_to_all": lambda out, given: (out, given),
    "gather": lambda out, given: (*given, out),
    "reduce_scatter": lambda out, given: (*out, given),
    "scatter": lambda out, given: (*out, given),
}


class Case(NamedTuple):
    """One call on every rank, with tensors like `before` and `inputs`.

    On this rank these must end as `after`, and the inputs as they were.
    """

    collective: str
    options: dict[str, object]
    before: Tensors
    inputs: Tensors
    after: Tensors
    schedule: Schedule | None = None  # whose traffic is compared, for `numel` elements
    numel: int = 0

    def call(self, outputs: Tensors, inputs: Tensors, async_op: bool) -> Work | None:
        order = ARGUMENTS.get(self.collective, lambda out, given: (*out, *given))
        given = order(outputs, inputs)
        made = getattr(minidist, self.collective)(*given, async_op=async_op, **self.options)
        return cast("Work | None", made)


def kinds(ranks: int) -> Iterator[tuple[int, torch.dtype, str]]:
    """Sizes in float32, and every dtype by every operation that has a meaning.

    On 5 ranks, which take long, by sums and averages alone; on 8, sizes alone.
    """
    sizes = {0, 1, max(0, ranks - 1), ranks, ranks + 1, 16, 33, 250}
    yield from ((size, torch.float32, "SUM") for size in sorted(sizes))
    for dtype, op in product(DTYPES if ranks < 8 else (), OPS if ranks < 5 else ("SUM", "AVG")):
        if (dtype, op) not in NO_MEANING:
            yield 2 * ranks + 1, dtype, op


def all_reduces(name: str, ranks: int, local: int, nbytes: int) -> Schedule | None:
    """The schedule of an algorithm, if it has one."""
    more = {"hierarchical": {"local": local}, "double_tree": {"segments": segments(nbytes)}}
    return ALL_REDUCE[name](ranks, **more.get(name, {})) if name in ALL_REDUCE else None


def of_all_reduce(rank: int, ranks: int) -> Iterator[Case]:
    local = 2 if ranks % 2 == 0 else ranks  # of what is hierarchical
    os.environ["LOCAL_WORLD_SIZE"] = str(local)
    large = [("double_tree", LARGE, torch.float64, "SUM")]
    names = [*ALL_REDUCE, "shared_memory", "auto"]
    for name, size, dtype, op in [(n, *kind) for n in names for kind in kinds(ranks)] + large:
        parts = [data(r, size, dtype, op) for r in range(ranks)]
        options = {"op": OPS[op], "algorithm": name}
        schedule = all_reduces(name, ranks, local, size * dtype.itemsize)
        each = [parts[rank]], [], [reduced(parts, op)]
        yield Case("all_reduce", options, *each, schedule, size)


def of_the_halves(rank: int, ranks: int) -> Iterator[Case]:
    scattering, gathering = algorithms.ring_reduce_scatter(ranks), algorithms.ring_all_gather(ranks)
    for size, dtype, op in kinds(ranks):
        logged, numel = dtype == torch.float32, ranks * size
        wholes = [data(r, (ranks, size), dtype, op) for r in range(ranks)]
        new, whole, mine = torch.zeros(size, dtype=dtype), wholes[rank], reduced(wholes, op)[rank]
        by: dict[str, object] = {"op": OPS[op]}
        for name in [*REDUCE_SCATTER, "shared_memory", "auto"]:
            schedule = REDUCE_SCATTER[name](ranks) if logged and name in REDUCE_SCATTER else None
            each = [new], [whole.flatten()], [mine]
            options = by | {"algorithm": name}
            yield Case("reduce_scatter_tensor", options, *each, schedule, numel)
        schedule = scattering if logged else None
        yield Case("reduce_scatter", by, [new], list(whole), [mine], schedule, numel)
        if op != "SUM":
            continue
        parts, empty = [data(r, size, dtype) for r in range(ranks)], torch.zeros(numel, dtype=dtype)
        for name in [*ALL_GATHER, "shared_memory", "auto"]:
            schedule = ALL_GATHER[name](ranks) if logged and name in ALL_GATHER else None
            each = [empty], [parts[rank]], [torch.cat(parts)]
            yield Case("all_gather_into_tensor", {"algorithm": name}, *each, schedule, numel)
        schedule = gathering if logged else None
        yield Case("all_gather", {}, [new] * ranks, [parts[rank]], parts, schedule, numel)


def of_roots(rank: int, ranks: int) -> Iterator[Case]:
    roots = [0, ranks // 2, ranks - 1]
    for turn, (size, dtype, op) in enumerate(kinds(ranks)):
        root, logged, numel = roots[turn % 3], dtype == torch.float32, ranks * size
        here = rank == root
        parts = [data(r, size, dtype, op) for r in range(ranks)]
        new, mine = torch.zeros(size, dtype=dtype), parts[rank]
        schedule = algorithms.tree_broadcast(ranks, root=root) if logged else None
        yield Case("broadcast", {"src": root}, [mine], [], [parts[root]], schedule, size)
        schedule = algorithms.tree_reduce(ranks, root=root) if logged else None
        after = reduced(parts, op) if here else mine
        by = {"dst": root, "op": OPS[op]}
        yield Case("reduce", by, [mine], [], [after], schedule, size)
        if op == "SUM":
            schedule = algorithms.direct_gather(ranks, root=root) if logged else None
            each = ([new] * ranks, [mine], parts) if here else ([], [mine], [])
            yield Case("gather", {"dst": root}, *each, schedule, numel)
            schedule = algorithms.direct_scatter(ranks, root=root) if logged else None
            given = parts if here else []
            yield Case("scatter", {"src": root}, [new], given, [mine], schedule, numel)


BLOCKS: dict[str, Callable[[int, int], int]] = {  # the size of the block from one rank to another
    "none": lambda src, dst: 0,
    "even": lambda src, dst: 250,
    "uneven": lambda src, dst: (3 * src + 5 * dst) % 7,
    "by sender": lambda src, dst: src,
    "by receiver": lambda src, dst: 2 * dst + 1,
}


def of_exchanges(rank: int, ranks: int) -> Iterator[Case]:
    def block(src: int, dst: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        return data(100 * src + dst, size, dtype)

    tried = [(name, torch.float32) for name in BLOCKS] + [("uneven", dtype) for dtype in DTYPES]
    for name, dtype in tried:
        size = BLOCKS[name]
        gives = [block(rank, d, size(rank, d), dtype) for d in range(ranks)]
        wants = [block(s, rank, size(s, rank), dtype) for s in range(ranks)]
        new = [torch.zeros_like(each) for each in wants]
        schedule = algorithms.pairwise_all_to_all(ranks) if name == "even" else None
        yield Case("all_to_all", {}, new, gives, wants, schedule, 250 * ranks * ranks)
        splits = [len(each) for each in wants], [len(each) for each in gives]
        options = dict(zip(("output_split_sizes", "input_split_sizes"), splits, strict=True))
        every = ([torch.cat(each)] for each in (new, gives, wants))
        yield Case("all_to_all_single", options, *every)
    for shape in ((2 * ranks, 3), (0, 3), (ranks, 0)):  # split evenly by default
        wholes = [data(r, shape) for r in range(ranks)]
        want = torch.cat([each.tensor_split(ranks)[rank] for each in wholes])
        yield Case("all_to_all_single", {}, [torch.zeros(shape)], [wholes[rank]], [want])
    for by, size in ((1, 7), (0, 7), (-1, 1), (2, 0), (ranks, 1), (-ranks - 1, 7)):
        mine, theirs = (data(r % ranks, size, torch.bool) for r in (rank, rank - by))
        schedule = algorithms.ring_shift(ranks) if by == 1 else None
        yield Case("ring_shift", {"by": by}, [mine], [], [theirs], schedule, 7 * ranks)
    yield Case("barrier", {}, [], [], [])


def strided(like: torch.Tensor, way: int) -> torch.Tensor:
    """A copy; every second one in memory with gaps, turned round."""
    if way % 2:
        room = torch.full((*like.shape[::-1], 2), 1, dtype=like.dtype)
        return room[..., 0].permute(*reversed(range(like.dim()))).copy_(like)
    return like.clone()


def as_planned(case: Case, log: list[Sent], rank: int) -> bool:
    """Whether this rank has sent each message of the schedule, and what the simulator says."""
    if case.schedule is None:
        return True
    itemsize = (case.before + case.inputs)[0].element_size()
    edge, planned = bounds(case.numel, case.schedule.chunks).tolist(), Counter[tuple[int, ...]]()
    for number, step in enumerate(case.schedule):
        for send in step:
            if send.src == rank:
                size = (edge[send.chunk + send.width] - edge[send.chunk]) * itemsize
                planned[number, send.src, send.dst, send.chunk] = size
    sent = Counter[tuple[int, ...]]()
    for message in log:
        sent[message[:4]] += message.nbytes
    want = traffic(case.schedule, case.numel, itemsize)
    total = want.sent_messages[rank], want.sent_bytes[rank]
    return sent == +planned and (len(log), sent.total()) == total


def every_case(check: bool) -> list[str]:
    """The cases that went wrong. Every third call is asynchronous, and recorded all the same."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong: list[str] = []
    os.environ["MINIDIST_CHECK"] = str(int(check))  # its messages are not recorded
    usual = in_memory.BLOCK, in_memory.SMALL
    for cases in (of_all_reduce, of_the_halves, of_roots, of_exchanges):
        for way, case in enumerate(cases(rank, ranks)):
            outputs = [strided(each, way + at) for at, each in enumerate(case.before)]
            inputs = [strided(each, way + at + 1) for at, each in enumerate(case.inputs)]
            many = ranks == 3 and case.options.get("algorithm") == "shared_memory"
            in_memory.BLOCK, in_memory.SMALL = (64, 8) if many else usual  # many blocks, or few
            with minidist.record() as log:
                work = case.call(outputs, inputs, way % 3 == 0)
            right = (work is not None and work.wait()) if way % 3 == 0 else work is None
            right = right and all(map(same, outputs, case.after))
            right = right and all(map(same, inputs, case.inputs))
            right = right and as_planned(case, log, rank)
            name = f"{case.collective} number {way}, {case.options}"
            wrong += [] if right else [f"{name}: {outputs}, not {case.after}; {log}"]
    return wrong


@pytest.mark.claim("A4", "A8", "B3", "B4", "B7")
@pytest.mark.parametrize("ranks", WORLDS)
def test_values_of_any_size_dtype_op_root_and_layout_and_the_traffic(ranks: int) -> None:
    assert launch(every_case, ranks, ranks == 3, timeout=120) == [[]] * ranks
    assert [segments(n) for n in (0, SEGMENT, 8 * LARGE, 10**12)] == [1, 1, 4, 64]


def special() -> tuple[list[str], dict[str, bytes]]:
    """NaN and infinity; and what shows the order of operands: zeros, payloads, complex products."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, bits = [], {}
    dice = torch.Generator().manual_seed(rank)
    spun = torch.randn(64, dtype=torch.complex64, generator=dice)
    loud = torch.tensor([0x7FC00001 + rank, 0x7FC00010 - rank], dtype=torch.int32)
    zeros = torch.tensor([0.0, -0.0] if rank % 2 else [-0.0, 0.0])
    odd = torch.cat([zeros, loud.view(torch.float32), torch.randn(30, generator=dice)])
    for algorithm in [*ALL_REDUCE, "shared_memory"]:
        for op in OPS:
            parts = [data(r, 9, op=op) for r in range(ranks)]
            for r, value in enumerate((float("nan"), float("inf"), float("-inf"))):
                parts[r % ranks][[r, r + 4]] = value
            want, tensor = reduced(parts, op), parts[rank].clone()
            minidist.all_reduce(tensor, OPS[op], algorithm=algorithm)
            wrong += [] if same(tensor, want) else [f"{algorithm} {op}: {tensor}, not {want}"]
            for name, given in (("complex", spun), ("odd", odd)):
                if name == "complex" and op in ("MIN", "MAX"):
                    continue
                minidist.all_reduce(tensor := given.clone(), OPS[op], algorithm=algorithm)
                bits[f"{algorithm} {op} {name}"] = bytes_of(tensor)
    return wrong, bits


@pytest.mark.parametrize("ranks", [3, 6])
def test_special_numbers_reach_every_rank_bit_for_bit(ranks: int) -> None:
    results = launch(special, ranks)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    first = results[0][1]
    for _, bits in results:
        assert [name for name in first if bits[name] != first[name]] == []


def random_floats() -> list[tuple[str, bytes]]:
    """Sums that do depend on the order of additions; with tiny pieces too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = []
    for piece in (1 << 20, 128):
        minidist.schedule.program.MAX_MESSAGE = piece
        for algorithm in ALL_REDUCE:
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                parts = [torch.randn(203, generator=torch.Generator().manual_seed(r)).to(dtype)
                         for r in range(ranks)]  # fmt: skip
                tensor = parts[rank].clone()
                minidist.all_reduce(tensor, ReduceOp.AVG, algorithm=algorithm, check=False)
                near = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {}
                torch.testing.assert_close(tensor, torch.stack(parts).mean(0), **near)
                results.append((f"{algorithm} {dtype}", bytes_of(tensor)))
    return results


def test_bit_equal_on_every_rank_in_every_run_and_however_cut() -> None:
    first, second = launch(random_floats, 5), launch(random_floats, 5)
    assert all(each == first[0] for each in first + second)
    whole, cut = first[0][: len(first[0]) // 2], first[0][len(first[0]) // 2 :]
    assert whole == cut
    by_float32 = {value for name, value in whole if "float32" in name}
    assert len(by_float32) > 1, "the numbers must be such that the order of additions shows"
