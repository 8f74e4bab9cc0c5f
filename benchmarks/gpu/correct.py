"""Every collective of minidist against an oracle, on GPU tensors."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import minidist
from benchmarks.gpu.cases import CASES, Setting
from benchmarks.gpu.section import in_each_world
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row
from minidist.schedule.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
NUMELS = (0, 1, 1013)  # of one part
SHOWN = 4  # wrong results that are told of each collective

Library = dict[str, Callable[..., Any]]  # collective → what is called
ALGORITHMS = {
    "all_reduce": [*ALL_REDUCE, "auto", "native"],
    "reduce_scatter_tensor": [*REDUCE_SCATTER, "auto"],
    "all_gather_into_tensor": [*ALL_GATHER, "auto"],
    "broadcast": BROADCAST,
    "reduce": REDUCE,
}


def library() -> Library:
    """What minidist has: "barrier", or "all_reduce, tree" where there is a choice."""
    found: Library = {}
    for name in CASES:
        call = getattr(minidist, name)
        by = {f"{name}, {each}": partial(call, algorithm=each) for each in ALGORITHMS.get(name, ())}
        found |= by or {name: call}
    return found


@in_each_world
def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
    """A row for each collective."""
    yield from compare(world, library(), where.large, seconds)


def compare(world: World, calls: Library, large: int, seconds: float) -> Iterator[Row]:
    """A row for each of `calls`: the number of checks, and which went wrong on which rank.

    Args:
        large: bytes of one part of the largest tensor.

    Raises:
        AssertionError: after the last row, if anything went wrong.
    """
    of_ranks = world.launch(check, calls, large, timeout=seconds)
    bad = []
    for name in calls:
        wrong = [f"rank {r}: {each}" for r, found in enumerate(of_ranks) for each in found[name][1]]
        yield {"collective": name, "checks": of_ranks[0][name][0], "wrong": wrong[:SHOWN]}
        bad += [f"{name}, {each}" for each in wrong]
    assert not bad, f"{len(bad)} wrong, such as {bad[0]}"


def check(calls: Library, large: int) -> dict[str, tuple[int, list[str]]]:
    """On a rank: collective → how often it was called, and which calls left what they must not."""
    found = {}
    for name, call in calls.items():
        tried = [_problem(name, call, how) for how in ways(large)]
        found[name] = len(tried), [each for each in tried if each]
    return found


class Way(NamedTuple):
    """A call. `numel`: elements of one part. `strided`: as every second element of its memory."""

    numel: int
    dtype: torch.dtype
    strided: bool
    async_op: bool


def ways(large: int) -> list[Way]:
    """How each collective is called; `large` in bytes."""
    small = [Way(*each) for each in product(NUMELS, DTYPES, (False, True), (False, True))]
    return small + [Way(large // 4 + 3, torch.float32, False, each) for each in (False, True)]


def _problem(name: str, call: Callable[..., Any], way: Way) -> str:
    """What is wrong with the result of one call; nothing if it is right."""
    numel, dtype, strided, async_op = way
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), minidist.device()
    setting = Setting(rank, ranks, numel, dtype, strided, device)
    arguments = CASES[name.split(",")[0]](setting)
    what = f"{dtype} x {numel}{', strided' * strided}{', async' * async_op}"
    try:
        work = call(*arguments, async_op=async_op)
        if async_op:
            work.wait()
    except (TypeError, ValueError) as error:  # refused, on all ranks; messages still match
        return f"{what}: {type(error).__name__}: {error}"
    return "" if setting.right() else what
