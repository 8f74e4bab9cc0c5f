"""Every collective between real ranks, against what one process computes, and its traffic.

One table: a collective's cases are its calls, made by every algorithm, on every size, dtype and
root, in memory with gaps and without.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import ReduceOp, launch
from minidist.collectives.runtime.executor import Sent
from minidist.schedule import algorithms
from minidist.schedule.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    SEGMENT,
    segments,
)
from minidist.schedule.program import WINDOW
from minidist.schedule.schedule import Schedule
from minidist.schedule.simulate import traffic
from tests.support.collectives import DTYPES, NO_MEANING, OPS, bytes_of, data, reduced, same

WORLDS = [1, 2, 3, 4, 5, 8]
MARK = 77  # in the memory around a tensor
NOT_IN_GLOO = (torch.complex64, "PRODUCT")

Tensors = list[torch.Tensor]
Log = list[Sent]


class Case(NamedTuple):
    """One call on every rank.

    `call(outputs, inputs, root)` is made with tensors like `before` and `inputs`; on this rank they
    must end as `after`, and the inputs as they were.
    """

    name: str
    before: Tensors
    inputs: Tensors
    after: Tensors
    call: Callable[[Tensors, Tensors], object]
    schedule: Schedule | None = None  # whose traffic is compared, for `numel` elements
    numel: int = 0


def sizes(ranks: int) -> list[int]:
    return sorted({0, 1, max(0, ranks - 1), ranks, ranks + 1, 31, 250})


def kinds(ranks: int) -> Iterator[tuple[int, torch.dtype, str]]:
    """Sizes in float32, and every dtype by every operation that has a meaning."""
    yield from ((size, torch.float32, "SUM") for size in sizes(ranks))
    for dtype in DTYPES:
        yield from ((2 * ranks + 1, dtype, op) for op in OPS if (dtype, op) not in NO_MEANING)


def of_all_reduce(rank: int, ranks: int) -> Iterator[Case]:
    local = 2 if ranks % 2 == 0 else ranks  # of what is hierarchical
    for algorithm in [*ALL_REDUCE, "native", "auto", "shared_memory"]:
        for size, dtype, op in kinds(ranks):
            if algorithm == "native" and (dtype, op) == NOT_IN_GLOO:
                continue
            if algorithm == "auto" and ranks == 1:
                continue
            parts = [data(r, size, dtype, op) for r in range(ranks)]
            yield Case(
                f"all_reduce {algorithm} {size} {dtype} {op}",
                [parts[rank]],
                [],
                [reduced(parts, op)],
                lambda out, _, op=op, by=algorithm: minidist.all_reduce(
                    *out, OPS[op], algorithm=by, local_ranks=local
                ),
            )


def of_the_halves(rank: int, ranks: int) -> Iterator[Case]:
    for size, dtype, op in kinds(ranks):
        wholes = [data(r, (ranks, size), dtype, op) for r in range(ranks)]
        new = torch.zeros(size, dtype=dtype)
        for algorithm in [*REDUCE_SCATTER, "shared_memory"]:
            yield Case(
                f"reduce_scatter_tensor {algorithm} {size} {dtype} {op}",
                [new],
                [wholes[rank].flatten()],
                [reduced(wholes, op)[rank]],
                lambda out, given, op=op, by=algorithm: minidist.reduce_scatter_tensor(
                    *out, *given, OPS[op], algorithm=by
                ),
            )
        yield Case(
            f"reduce_scatter {size} {dtype} {op}",
            [new],
            list(wholes[rank]),
            [reduced(wholes, op)[rank]],
            lambda out, given, op=op: minidist.reduce_scatter(*out, given, OPS[op]),
            algorithms.ring_reduce_scatter(ranks) if dtype == torch.float32 else None,
            ranks * size,
        )
        if op != "SUM":
            continue
        parts = [data(r, size, dtype) for r in range(ranks)]
        for algorithm in [*ALL_GATHER, "shared_memory"]:
            yield Case(
                f"all_gather_into_tensor {algorithm} {size} {dtype}",
                [torch.zeros(ranks * size, dtype=dtype)],
                [parts[rank]],
                [torch.cat(parts)],
                lambda out, given, by=algorithm: minidist.all_gather_into_tensor(
                    *out, *given, algorithm=by
                ),
            )
        yield Case(
            f"all_gather {size} {dtype}",
            [new] * ranks,
            [parts[rank]],
            parts,
            lambda out, given: minidist.all_gather(out, *given),
            algorithms.ring_all_gather(ranks) if dtype == torch.float32 else None,
            ranks * size,
        )


def of_roots(rank: int, ranks: int) -> Iterator[Case]:
    roots = [0, ranks // 2, ranks - 1]
    for turn, (size, dtype, op) in enumerate(kinds(ranks)):
        root, logged = roots[turn % 3], dtype == torch.float32
        here = rank == root
        parts = [data(r, size, dtype, op) for r in range(ranks)]
        new, mine = torch.zeros(size, dtype=dtype), parts[rank]
        for name, table in (("broadcast", BROADCAST), ("reduce", REDUCE)):
            for algorithm, make in table.items():
                chosen = {"op": OPS[op]} if name == "reduce" else {}
                reducing = reduced(parts, op) if here else mine
                yield Case(
                    f"{name} {algorithm} {size} {dtype} {op}, {root}",
                    [mine],
                    [],
                    [reducing if chosen else parts[root]],
                    lambda out, _, name=name, by=algorithm, root=root, more=chosen: getattr(
                        minidist, name
                    )(*out, root, algorithm=by, **more),
                    make(ranks, root=root) if logged else None,
                    size,
                )
        if op != "SUM":
            continue
        yield Case(
            f"gather {size} {dtype}, {root}",
            [new] * ranks if here else [],
            [mine],
            parts if here else [],
            lambda out, given, root=root: minidist.gather(*given, out, root),
            algorithms.direct_gather(ranks, root=root) if logged else None,
            ranks * size,
        )
        yield Case(
            f"scatter {size} {dtype}, {root}",
            [new],
            parts if here else [],
            [mine],
            lambda out, given, root=root: minidist.scatter(*out, given, root),
            algorithms.direct_scatter(ranks, root=root) if logged else None,
            ranks * size,
        )


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
        splits = [len(each) for each in wants], [len(each) for each in gives]
        logged = algorithms.pairwise_all_to_all(ranks) if name == "even" else None
        yield Case(
            f"all_to_all {name} {dtype}",
            [torch.zeros_like(each) for each in wants],
            gives,
            wants,
            minidist.all_to_all,
            logged,
            250 * ranks * ranks,
        )
        yield Case(
            f"all_to_all_single {name} {dtype}",
            [torch.zeros_like(torch.cat(wants))],
            [torch.cat(gives)],
            [torch.cat(wants)],
            lambda out, given, splits=splits: minidist.all_to_all_single(*out, *given, *splits),
        )
    for shape in ((2 * ranks, 3), (0, 3), (ranks, 0), (ranks,)):  # split evenly by default
        every = [data(r, shape) for r in range(ranks)]
        yield Case(
            f"all_to_all_single {shape}",
            [torch.zeros(shape)],
            [every[rank]],
            [torch.cat([each.tensor_split(ranks)[rank] for each in every])],
            lambda out, given: minidist.all_to_all_single(*out, *given),
        )
    for by in (1, 0, -1, 2, ranks, -ranks - 1):
        for size, dtype in ((0, torch.float32), (7, torch.bool), (1, torch.half)):
            yield Case(
                f"ring_shift {by} {size} {dtype}",
                [data(rank, size, dtype)],
                [],
                [data((rank - by) % ranks, size, dtype)],
                lambda out, _, by=by: minidist.ring_shift(*out, by),
                algorithms.ring_shift(ranks) if by == 1 and dtype == torch.bool else None,
                7 * ranks,
            )


def strided(like: torch.Tensor, way: int) -> torch.Tensor:
    """A copy; every second one in memory with gaps, turned round."""
    if way % 2:
        room = torch.full((*like.shape[::-1], 2), 1, dtype=like.dtype)
        return room[..., 0].permute(*reversed(range(like.dim()))).copy_(like)
    return like.clone()


def every_case(check: bool) -> tuple[list[str], dict[str, Log]]:
    """The names of the cases that went wrong, and what was sent in those that are compared."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong: list[str] = []
    logs: dict[str, Log] = {}
    minidist.collectives.call.agreement.os.environ["MINIDIST_CHECK"] = str(int(check))
    for cases in (of_all_reduce, of_the_halves, of_roots, of_exchanges):
        for way, case in enumerate(cases(rank, ranks)):
            outputs = [strided(each, way + at) for at, each in enumerate(case.before)]
            inputs = [strided(each, way + at + 1) for at, each in enumerate(case.inputs)]
            with minidist.record() as log:
                returned = case.call(outputs, inputs)
            right = returned is None and all(map(same, outputs, case.after))
            right = right and all(map(same, inputs, case.inputs))
            wrong += [] if right else [f"{case.name}: {outputs}"]
            if case.schedule:
                logs[case.name] = log
                itemsize = (case.before + case.inputs)[0].element_size()
                want = traffic(case.schedule, case.numel, itemsize)
                sent = len(log), sum(each.nbytes for each in log)
                planned = want.sent_messages[rank], want.sent_bytes[rank]
                wrong += [] if sent == planned else [f"{case.name} sent {sent}, not {planned}"]
    return wrong, logs


@pytest.mark.claim("B7")
@pytest.mark.parametrize("ranks", WORLDS)
def test_values_of_any_size_dtype_op_root_and_layout_and_the_traffic(ranks: int) -> None:
    results = launch(every_case, ranks, ranks == 3, timeout=120)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    logs = [logs for _, logs in results]
    assert len(logs[0]) > 20
    for name in logs[0]:
        sent = sorted(each[1:3] for log in logs for each in log[name])
        assert all(src != dst for src, dst in sent), name
        assert all(each.src == rank for rank, log in enumerate(logs) for each in log[name])


def against_torch() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for dtype, op in ((d, op) for d in DTYPES for op in OPS if (d, op) not in NO_MEANING):
        if (dtype, op) in (NOT_IN_GLOO, (torch.bool, "SUM")):  # it adds bytes, and 2 is no bool
            continue
        if op == "AVG" and not dtype.is_floating_point:  # Gloo has no others
            continue
        torchs, ours = (data(rank, 37, dtype, op) for _ in range(2))
        dist.all_reduce(torchs, OPS[op])
        minidist.all_reduce(ours, OPS[op])
        wrong += [] if same(ours, torchs) else [f"all_reduce {dtype} {op}"]
    for numel in (0, 1, 13):
        whole, part = data(rank, numel * ranks), data(rank, numel)
        torchs, ours = torch.empty(numel), torch.empty(numel)
        dist.reduce_scatter(torchs, list(whole.tensor_split(ranks)))
        minidist.reduce_scatter_tensor(ours, whole)
        wrong += [] if same(ours, torchs) else [f"reduce_scatter {numel}"]
        slots = [torch.empty(numel) for _ in range(ranks)]
        dist.all_gather(slots, part)
        minidist.all_gather_into_tensor(ours := torch.empty(numel * ranks), part)
        wrong += [] if same(ours, torch.cat(slots)) else [f"all_gather {numel}"]
    return wrong


def test_the_same_as_torchs_own_on_contiguous_tensors() -> None:
    assert launch(against_torch, 3) == [[]] * 3


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


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
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


@pytest.mark.parametrize("ranks", [3, 5])
def test_bit_equal_on_every_rank_in_every_run_and_however_cut(ranks: int) -> None:
    first, second = launch(random_floats, ranks), launch(random_floats, ranks)
    assert all(each == first[0] for each in first + second)
    whole, cut = first[0][: len(first[0]) // 2], first[0][len(first[0]) // 2 :]
    assert whole == cut
    by_float32 = {value for name, value in whole if "float32" in name}
    assert len(by_float32) > 1, "the numbers must be such that the order of additions shows"


def no_kernel() -> list[str]:
    said = []
    for dtype, op in [NOT_IN_GLOO, (torch.int16, "SUM")]:
        with pytest.raises(minidist.CommunicationError) as caught:
            minidist.all_reduce(torch.ones(3, dtype=dtype), OPS[op], algorithm="native")
        said.append(str(caught.value))
    return said


def test_what_the_backend_cannot_do_is_said_on_every_rank() -> None:
    for rank, (product, int16) in enumerate(launch(no_kernel, 2)):
        assert f"rank {rank}: the backend's own all_reduce of torch.complex64 by PRODUCT" in product
        assert f"rank {rank}: the backend's own all_reduce of torch.int16 by SUM failed" in int16


def in_pieces() -> list[str]:
    """Blocks of 1 to WINDOW + 3 pieces, of another size for each pair of ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    minidist.schedule.program.MAX_MESSAGE, wrong = 16, []
    for most in (1, 2, WINDOW, WINDOW + 3):

        def block(src: int, dst: int, most: int = most) -> torch.Tensor:
            return data(100 * src + dst, 4 * most - (src + 2 * dst) % 4)

        wants = [block(s, rank) for s in range(ranks)]
        got = [torch.zeros_like(each) for each in wants]
        minidist.all_to_all(got, [block(rank, d) for d in range(ranks)])
        wrong += [] if all(map(same, got, wants)) else [f"all_to_all, {most} pieces: {got}"]
        wholes = [data(r, (ranks, 4 * most - 1)) for r in range(ranks)]
        slots = [torch.zeros(4 * most - 1) for _ in range(ranks)]
        minidist.all_gather(slots, wholes[rank][0])
        fine = all(map(same, slots, [each[0] for each in wholes]))
        wrong += [] if fine else [f"all_gather, {most} pieces: {slots}"]
        minidist.reduce_scatter(output := slots[0], list(wholes[rank]))
        fine = same(output, reduced(wholes)[rank])
        wrong += [] if fine else [f"reduce_scatter, {most} pieces: {output}"]
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_blocks_of_several_pieces(ranks: int) -> None:
    assert launch(in_pieces, ranks) == [[]] * ranks


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
