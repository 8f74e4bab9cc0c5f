"""all_reduce, reduce_scatter_tensor and all_gather_into_tensor between real ranks."""

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import ReduceOp, launch
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tests.support.collectives import (
    DTYPES,
    NO_MEANING,
    OPS,
    all_reduced,
    bytes_of,
    data,
    reduced,
    same,
)

WORLDS = [1, 2, 3, 4, 5, 8]
ALGORITHMS = [*ALL_REDUCE, "native"]
NOT_IN_GLOO = (torch.complex64, "PRODUCT")

Wrong = list[str]
Check = Callable[[], tuple[int, Wrong]]  # runs on a rank; how many cases, and those that failed


def run(check: Check, ranks: int) -> None:
    """Every rank must have gone through the same cases, and found none wrong."""
    results = launch(check, ranks)
    assert {r: wrong for r, (_, wrong) in enumerate(results) if wrong} == {}
    assert len({count for count, _ in results}) == 1
    assert results[0][0] > 0


def sizes(ranks: int) -> list[int]:
    return sorted({0, 1, max(0, ranks - 1), ranks, ranks + 1, 2, 7, 31, 127, 1000})


def value_cases(ranks: int) -> Iterator[tuple[str, int, torch.dtype, str]]:
    yield from (("ring", size, torch.float32, op) for size in sizes(ranks) for op in OPS)
    for algorithm in ALGORITHMS:
        yield from ((algorithm, size, torch.float32, "SUM") for size in sizes(ranks))
        for op in OPS:
            for dtype in DTYPES:
                if (dtype, op) not in NO_MEANING:
                    yield algorithm, 2 * ranks + 1, dtype, op


def every_value() -> tuple[int, Wrong]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    local = 2 if ranks % 2 == 0 else ranks  # of what is hierarchical
    cases = [c for c in value_cases(ranks) if (c[0], c[2:]) != ("native", NOT_IN_GLOO)]
    wrong = []
    for algorithm, size, dtype, op in cases:
        tensor = data(rank, size, dtype, op)
        options = {"algorithm": algorithm, "local_ranks": local, "check": False}
        result = minidist.all_reduce(tensor, OPS[op], **options)
        if result is not None or not same(tensor, all_reduced(ranks, size, dtype, op)):
            wrong.append(f"{algorithm} {size} {dtype} {op}: {tensor}")
    return len(cases), wrong


@pytest.mark.claim("B7")
@pytest.mark.parametrize("ranks", WORLDS)
def test_all_reduce_of_any_size_dtype_and_op(ranks: int) -> None:
    run(every_value, ranks)


def against_torch() -> tuple[int, Wrong]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    cases = [(d, op) for d in DTYPES for op in OPS if (d, op) not in NO_MEANING]
    cases = [c for c in cases if c != NOT_IN_GLOO and c != (torch.bool, "SUM")]  # 2 is no bool
    cases = [c for c in cases if c[1] != "AVG" or c[0].is_floating_point]  # Gloo has no others
    for dtype, op in cases:
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
        ours = torch.empty(numel * ranks)
        minidist.all_gather_into_tensor(ours, part)
        wrong += [] if same(ours, torch.cat(slots)) else [f"all_gather {numel}"]
    return len(cases), wrong


def test_the_same_as_torchs_own_on_contiguous_tensors() -> None:
    run(against_torch, 3)


def scatter_and_gather() -> tuple[int, Wrong]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    cases = [(n, torch.float32, op) for n in (0, 1, 2, 7, 250) for op in OPS]
    cases += [(3, dtype, op) for dtype in DTYPES for op in OPS if (dtype, op) not in NO_MEANING]
    scatters, gathers = cycle(REDUCE_SCATTER), cycle(ALL_GATHER)
    for numel, dtype, op in cases + cases[::-1] + cases:  # in turn by every algorithm
        whole, part = data(rank, numel * ranks, dtype, op), data(rank, numel, dtype)
        output = torch.zeros(numel, dtype=dtype)
        by = {"algorithm": next(scatters), "check": False}
        minidist.reduce_scatter_tensor(output, whole, OPS[op], **by)
        want = all_reduced(ranks, numel * ranks, dtype, op)[rank * numel : (rank + 1) * numel]
        wrong += [] if same(output, want) else [f"reduce_scatter {numel} {dtype} {op} {by}"]
        kept = same(whole, data(rank, numel * ranks, dtype, op))
        wrong += [] if kept else [f"reduce_scatter {numel} {dtype} {op} changed its input"]
        gathered = torch.zeros(ranks, numel, dtype=dtype)
        by = {"algorithm": next(gathers), "check": False}
        minidist.all_gather_into_tensor(gathered, part, **by)
        want = torch.stack([data(r, numel, dtype) for r in range(ranks)])
        wrong += [] if same(gathered, want) else [f"all_gather {numel} {dtype} {by}"]
        wrong += [] if same(part, data(rank, numel, dtype)) else ["all_gather changed its input"]
    return len(cases), wrong


@pytest.mark.parametrize("ranks", WORLDS)
def test_reduce_scatter_and_all_gather_of_any_size_dtype_and_op(ranks: int) -> None:
    run(scatter_and_gather, ranks)


def not_a_number() -> tuple[int, Wrong]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cases = [(algorithm, op) for algorithm in ALL_REDUCE for op in OPS]
    wrong = []
    for algorithm, op in cases:
        parts = [data(r, 9, op=op) for r in range(ranks)]
        for r, value in enumerate((float("nan"), float("inf"), float("-inf"))):
            parts[r][[r, r + 4]] = value
        want, tensor = reduced(parts, op), parts[rank].clone()
        minidist.all_reduce(tensor, OPS[op], algorithm=algorithm)
        wrong += [] if same(tensor, want) else [f"{algorithm} {op}: {tensor}, not {want}"]
    return len(cases), wrong


def test_nan_and_infinity_reach_every_rank() -> None:
    run(not_a_number, 3)


def random_floats() -> list[tuple[str, bytes]]:
    """Sums that do depend on the order of additions; with tiny pieces too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = []
    for piece in (1 << 20, 128):
        minidist.schedule.program.PIECE = piece
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
