"""The graders of the lab on ZeRO: mistakes get a diagnosis."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist  # noqa: F401, in a table

import minidist
from course.chapters.zero import exercises as grade
from tests.course.verdicts import diagnosed, reader
from tests.support.by_hand import zero as hand

# ---- who owns what ----


def cut(sizes: list[int], size: int, rank: int) -> list[tuple[int, int]]:
    """Of each parameter what lies in [rank * size, (rank + 1) * size) of all of them."""
    found, offset = [], 0
    for each in sizes:
        start = min(max(rank * size - offset, 0), each)
        found.append((start, min(max((rank + 1) * size - offset, 0), each)))
        offset += each
    return found


def up(sizes: list[int], ranks: int) -> int:
    return -(-sum(sizes) // ranks)


def test_however_an_empty_range_is_written_it_is_right() -> None:
    def shifted(sizes: list[int], ranks: int, rank: int) -> list[tuple[int, int]]:
        own = cut(sizes, up(sizes, ranks), rank)
        return [(start, end) if start < end else (9, 9) for start, end in own]

    assert grade.slices(lambda s, n, r: cut(s, up(s, n), r))
    assert grade.slices(shifted)


# ---- by hand, before a knob is turned ----


def summed(own: Any, whole: Any) -> None:
    minidist.reduce_scatter_tensor(own, whole)


def of_the_next_rank(own: Any, whole: Any) -> None:
    """What a ring leaves that was not shifted: rank r has the slice of rank r + 1."""
    hand.reduce_scatter(own, whole.roll(-len(own)))


# ---- the wire ----


ONCE = {"DDP": 2, "ZeRO-1 on DDP": 3, "ZeRO-1": 2, "ZeRO-2": 1}
EACH = {"ZeRO-2": 1, "ZeRO-3": 3, "ZeRO-3, weights kept": 2}


def wire(strategy: str, nbytes: int, ranks: int, micro: int) -> float:
    return (ONCE.get(strategy, 0) + EACH.get(strategy, 0) * micro) * (ranks - 1) / ranks * nbytes


def test_numbers_of_other_types_are_right() -> None:
    assert grade.slices(lambda s, n, r: torch.tensor(cut(s, up(s, n), r)))
    assert grade.wire(lambda *case: np.float64(wire(*case)))
    assert grade.wire(lambda *case: int(wire(*case))), "rounded to whole bytes"


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.by_hand] = rows("""
mistake | hand.zero_1(reduce=summed) | step 1 .* gradient that is the sum .*divide by
mistake | hand.zero_1(reduce=lambda own, whole: hand.reduce_scatter(own, whole / 3))
    | divided twice
mistake | hand.zero_1(reduce=hand.its_own) | slice 0 were moved by a gradient that is still its own
off by one | hand.zero_1(reduce=of_the_next_rank)
    | in slice 0 were moved by a gradient that belongs to slice 1.*the r-th
mistake | hand.zero_1(gather=lambda *_: None)
    | in slice 0 have not changed. They are another rank's: all-gather
mistake | hand.zero_1(write=False) | rank 0 of 3, .* weights in slice 0 have not changed. Write
mistake | hand.zero_1(afresh=True) | step 2 of 3, .* moments of the last step
type | lambda parameters, make: make(parameters) | you return a SGD, expected a function
these sizes | hand.zero_1(pad=False) | On 3 real processes ranks? .* raised
constant | hand.zero_1(reduce=hand.of_three) | rank 0 of 5, .* is 1.67 times the average
two ranks | hand.zero_1(reduce=hand.with_the_other)
    | rank 0 of 3, .* the weights in slice 0 are off by
traffic | hand.zero_1(before=hand.moments_too)
    | weights are right, but .* 1.5 times the .*moments need not travel
traffic | hand.zero_1(reduce=hand.all_reduced) | weights are right, but .* 1.5 times
traffic | hand.zero_1(reduce=hand.in_halves) | make fewer calls
gathers all | hand.zero_1(reduce=hand.gathered) | weights are right, but .* 2 times
torch's own | hand.zero_1(reduce=hand.by_torch) | torch.distributed's all_reduce
torch's own | hand.zero_1(gather=dist.all_gather_into_tensor)
    | torch.distributed's all_gather_into_tensor
memory | hand.by_whole_parameters | rank 0 of 3, .* the optimizer keeps 24 moments; .* slice, 20
memory | hand.of_all_moments | rank 0 of 3, .* the optimizer keeps 59 moments; .* slice, 20
""")
WRONG[grade.during_backward] = rows("""
mistake | hand.hooks(reduce=summed) | the sum over 3 ranks, expected the average
mistake | hand.hooks(reduce=hand.its_own)
    | rank 0 of 3, the slice of parameter 0 is still its own
off by one | hand.hooks(reduce=of_the_next_rank) | is that of rank 1: rank r keeps the r-th
mistake | hand.hooks(add=False) | the second backward alone: add to it
these sizes | hand.hooks(last=False) | slice of parameter 3 is still zero.*every parameter
mistake | hand.hooks(free=False) | counts the first backward twice.*parameter.grad to None
constant | hand.hooks(reduce=hand.of_three) | rank 0 of 5, .* is 1.67 times the average
two ranks | hand.hooks(reduce=hand.with_the_other) | rank 0 of 3, .* is off by up to
traffic | hand.hooks(reduce=hand.all_reduced) | slices are right, but .* 2 times the
traffic | hand.hooks(reduce=hand.in_halves) | make fewer calls
gathers all | hand.hooks(reduce=hand.gathered) | slices are right, but .* 3 times the
torch's own | hand.hooks(reduce=hand.by_torch) | torch.distributed's all_reduce
memory | hand.one_behind | up to 2 of 4 whole gradients were there at once
memory | hand.at_the_end | up to 3 of 4 whole gradients were there at once
memory | hand.hooks(reduce=hand.kept) | up to . of 4 whole gradients were there at once
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
