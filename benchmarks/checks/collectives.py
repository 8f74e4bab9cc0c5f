"""Every collective of minidist against an oracle, on GPU tensors.

What must come out is written from what the names mean in torch.distributed; nothing here knows how
minidist does it.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tests.support import collectives as oracle

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
NUMELS = (0, 1, 1013)  # of one part
SHOWN = 4  # wrong results of each collective that are recorded
FILLER = 7  # what lies between the elements of a strided tensor, and must stay there

ALGORITHMS = {
    "all_reduce": [*ALL_REDUCE, "auto"],
    "reduce_scatter_tensor": [*REDUCE_SCATTER, "auto"],
    "all_gather_into_tensor": [*ALL_GATHER, "auto"],
}
Library = dict[str, Callable[..., Any]]  # collective → what is called

data, all_reduced = (lru_cache(each) for each in (oracle.data, oracle.all_reduced))  # only read


def library() -> Library:
    """What minidist has: "barrier", or "all_reduce, tree" where there is a choice."""
    found: Library = {}
    for name in CALLS:
        call = getattr(minidist, name)
        by = {f"{name}, {each}": partial(call, algorithm=each) for each in ALGORITHMS.get(name, ())}
        found |= by or {name: call}
    return found


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each collective."""
    yield from compare(setup, library(), scope.part_bytes, clock)


def compare(setup: Setup, calls: Library, part_bytes: int, clock: Clock) -> Iterator[Row]:
    """A row for each of `calls`: the number of checks, and which went wrong on which rank.

    Raises:
        AssertionError: after the last row, if anything went wrong.
    """
    of_ranks = setup.launch(check, calls, part_bytes, timeout=clock.left())
    bad = []
    for name in calls:
        wrong = [f"rank {r}: {each}" for r, found in enumerate(of_ranks) for each in found[name][1]]
        yield {"collective": name, "checks": of_ranks[0][name][0], "wrong": wrong[:SHOWN]}
        bad += [f"{name}, {each}" for each in wrong]
    assert not bad, f"{len(bad)} wrong, such as {bad[0]}"


def check(calls: Library, part_bytes: int) -> dict[str, tuple[int, list[str]]]:
    """On a rank: collective → the number of calls, and which left a wrong result."""
    found = {}
    for name, call in calls.items():
        problems = [_problem(name, call, how) for how in variants(part_bytes)]
        found[name] = len(problems), [each for each in problems if each]
    return found


class Variant(NamedTuple):
    """A call. `numel`: elements of one part. `strided`: every second element of its memory."""

    numel: int
    dtype: torch.dtype
    strided: bool
    async_op: bool


def variants(part_bytes: int) -> list[Variant]:
    """How each collective is called."""
    small = [Variant(*each) for each in product(NUMELS, DTYPES, (False, True), (False, True))]
    large = part_bytes // 4 + 3
    return small + [Variant(large, torch.float32, False, each) for each in (False, True)]


def _problem(name: str, call: Callable[..., Any], how: Variant) -> str:
    """What is wrong with the result of one call; "" if it is right."""
    tensors = Tensors(how)
    arguments = CALLS[name.split(",")[0]](tensors)
    strided, asynchronous = ", strided" * how.strided, ", async" * how.async_op
    what = f"{how.dtype} x {how.numel}{strided}{asynchronous}"
    try:
        work = call(*arguments, async_op=how.async_op)
        if how.async_op:
            work.wait()
    except (TypeError, ValueError) as error:  # refused, on all ranks; messages still match
        return f"{what}: {type(error).__name__}: {error}"
    return "" if tensors.right() else what


class Tensors:
    """The tensors of one call on one rank, and what each must hold after it.

    Full tensors have a part of `numel` elements for each rank. The last rank is the root.
    """

    def __init__(self, how: Variant) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.root = self.ranks - 1
        self.numel, self.dtype, self._strided, _ = how
        self._wanted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def part(self, rank: int) -> torch.Tensor:
        """A rank's input, on the CPU."""
        return data(rank, self.numel, self.dtype)

    def full(self, rank: int) -> torch.Tensor:
        """A rank's input with a part for each rank: a matrix of N rows."""
        return data(rank, (self.ranks, self.numel), self.dtype)

    def reduced(self, *shape: int) -> torch.Tensor:
        """The sum of all ranks' inputs of a shape."""
        return all_reduced(self.ranks, shape, self.dtype)

    def my_sum(self) -> torch.Tensor:
        """This rank's part of the sum."""
        return self.reduced(self.ranks, self.numel)[self.rank]

    def parts(self) -> list[torch.Tensor]:
        """All ranks' inputs."""
        return [self.part(rank) for rank in range(self.ranks)]

    def arriving(self) -> list[torch.Tensor]:
        """The part for this rank of each rank's input."""
        return [self.full(src)[self.rank] for src in range(self.ranks)]

    def put(self, start: torch.Tensor, want: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor to pass: holds `start`, and must hold `want` after; None: still `start`."""
        shape = start.numel(), 2 if self._strided else 1
        wide = torch.full(shape, FILLER, dtype=self.dtype, device=minidist.device())
        tensor, between = wide[:, 0], wide[:, 1:]
        tensor.copy_(start.reshape(-1))
        self._wanted.append((between, torch.full_like(between, FILLER, device="cpu")))
        self._wanted.append((tensor, (start if want is None else want).reshape(-1)))
        return tensor

    def blank(self, want: torch.Tensor) -> torch.Tensor:
        """A tensor that must be filled with `want`."""
        return self.put(torch.full_like(want, FILLER), want)

    def right(self) -> bool:
        """Whether all tensors hold what they must."""
        return all(oracle.same(tensor.cpu().contiguous(), want) for tensor, want in self._wanted)


Arguments = tuple[Any, ...]


def _all_reduce(t: Tensors) -> Arguments:
    # As large as the full tensors of other calls; chunks of unequal size.
    numel = t.numel if t.numel < 2 else t.numel * t.ranks - 1
    return (t.put(data(t.rank, (numel,), t.dtype), t.reduced(numel)),)


def _reduce(t: Tensors) -> Arguments:
    if t.rank == t.root:
        return t.put(t.part(t.rank), t.reduced(t.numel)), t.root
    return t.part(t.rank).to(minidist.device(), copy=True), t.root  # what it holds after is open


def _gather(t: Tensors) -> Arguments:
    at_root = [t.blank(each) for each in t.parts()] if t.rank == t.root else None
    return t.put(t.part(t.rank)), at_root, t.root


def _scatter(t: Tensors) -> Arguments:
    at_root = [t.put(row) for row in t.full(t.root)] if t.rank == t.root else None
    return t.blank(t.full(t.root)[t.rank]), at_root, t.root


CALLS: dict[str, Callable[[Tensors], Arguments]] = {
    "all_reduce": _all_reduce,
    "broadcast": lambda t: (t.put(t.part(t.rank), t.part(t.root)), t.root),
    "reduce": _reduce,
    "reduce_scatter_tensor": lambda t: (t.blank(t.my_sum()), t.put(t.full(t.rank))),
    "reduce_scatter": lambda t: (t.blank(t.my_sum()), [t.put(row) for row in t.full(t.rank)]),
    "all_gather_into_tensor": lambda t: (t.blank(torch.cat(t.parts())), t.put(t.part(t.rank))),
    "all_gather": lambda t: ([t.blank(each) for each in t.parts()], t.put(t.part(t.rank))),
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": lambda t: (t.blank(torch.cat(t.arriving())), t.put(t.full(t.rank))),
    "all_to_all": lambda t: (
        [t.blank(row) for row in t.arriving()],
        [t.put(row) for row in t.full(t.rank)],
    ),
    "ring_shift": lambda t: (t.put(t.part(t.rank), t.part((t.rank - 1) % t.ranks)),),
    "barrier": lambda t: (),
}
