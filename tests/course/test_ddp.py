"""The graders of the lab in which one builds DDP: mistakes get a diagnosis."""

import os  # noqa: F401, in a table
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidist  # noqa: F401, in a table
from course import verdict as shared
from course.graders import ddp as grade
from minidist import ReduceOp  # noqa: F401, in a table
from tests.course.verdicts import diagnosed, reader, says
from tests.support.by_hand import ddp as hand


@pytest.mark.parametrize(
    "way", [hand.in_another_order(lambda parameters: parameters[::-1]), hand.by_tensor_hooks]
)
def test_another_right_way_is_right_too(way: Any) -> None:
    assert grade.by_hand(way)


def test_a_rank_that_waits_for_the_others_in_vain_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout in (3, 10, 60):  # on a busy machine ranks may take a while to begin
        monkeypatch.setattr(shared, "TIMEOUT", timeout)
        verdict = grade.by_hand(hand.from_rank_0_only)
        if "rank 0 did" in verdict.text:
            break
    says(f"rank 0 did not end within {timeout} s.*line .*the same calls", verdict)


def nothing(parameter: Any) -> None:
    pass


# ---- buckets ----


def fill(sizes: list[int], first: int, cap: int) -> list[list[int]]:
    buckets: list[list[int]] = [[]]
    for number in reversed(range(len(sizes))):
        limit = first if len(buckets) == 1 else cap
        if sum(sizes[i] for i in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def in_chunks(size: int) -> Callable[..., list[list[int]]]:
    """The last alone, then so many at a time."""

    def chunked(sizes: list[int], first: int, cap: int) -> list[list[int]]:
        last, *order = range(len(sizes))[::-1]
        return [[last], *(order[i : i + size] for i in range(0, len(order), size))]

    return chunked


def test_another_way_to_fill_them_is_right_too() -> None:
    assert grade.buckets(fill)


def test_numbers_of_other_types_are_right() -> None:
    assert grade.buckets(lambda *case: [np.array(bucket) for bucket in fill(*case)])


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.by_hand] = rows("""
mistake | hand.by_hand(average=lambda p: minidist.all_reduce(p.grad))
    | step 1 .* is the sum over 3 ranks, .*: divide by their number
mistake | hand.by_hand(average=lambda p: minidist.all_reduce(p.grad.div_(3), ReduceOp.AVG))
    | divided twice
mistake | hand.by_hand(average=lambda p: setattr(p, "grad", p.grad / 3))
    | its own, divided, and not summed
mistake | hand.by_hand(average=lambda p: minidist.all_reduce(p.data, ReduceOp.AVG))
    | changed 0.weight itself.*reduce parameter.grad
mistake | hand.by_hand(average=lambda p: setattr(p, "grad", None))
    | On rank . of 3 0.weight has no gradient
mistake | hand.by_hand(average=nothing)
    | rank 0's gradient of 0.weight is still its own.*every param
mistake | hand.by_hand(broadcast=nothing) | rank 1 starts with a 0.weight .*broadcast
mistake | hand.by_hand(broadcast=lambda p: minidist.broadcast(p.detach(), 2))
    | rank 0 starts with a 0.weight .* not rank 0's
mistake | hand.by_hand(broadcast=lambda p: minidist.broadcast(p, 0))
    | requires grad.*parameter.detach()
order | hand.in_another_order(hand.rotated) | disagree on tensor's shape.*in the same order
order | hand.in_another_order(hand.swapped)
    | another one than its peers have.*same order everywhere
mistake | hand.once | in step 2 of 2, rank 0's gradient of 0.weight is still its own
constant | hand.by_hand(average=hand.average_of_three)
    | on 5 .* is 1.67 times the average: divide once, by the number of ranks
two ranks | hand.by_hand(average=hand.with_the_next_rank) | on 3 real .*another one than
these sizes | hand.first_eight | rank 0's gradient of .* is still its own
gathers all | hand.by_hand(average=hand.gathered)
    | the gradients are right, but .* 1.5 times the .* that are enough
traffic | hand.by_hand(average=hand.twice) | the gradients are right, but .* 2 times the
traffic | hand.by_hand(average=hand.by_rank_0) | rank 0 sends .* for each rank are enough
traffic | hand.by_hand(average=hand.in_halves) | sends .* messages .*make fewer calls
traffic | hand.by_hand(broadcast=hand.broadcast_by_a_sum)
    | the replicas are alike, but .* 2 times
torch's own | hand.by_hand(average=hand.by_torch) | calls torch.distributed's all_reduce
torch's own | hand.by_hand(average=hand.by_torch_in_secret) | torch.distributed's all_red
raises | lambda model: os._exit(3) | left with exit code 3
""")
WRONG[grade.buckets] = [
    ("mistake", lambda s, *caps: [*fill(s, *caps), [0]], "Parameter 0 is in 2 buckets"),
    ("mistake", lambda s, *caps: [list(range(len(s)))], "Go through the parameters in reverse"),
    ("these sizes", in_chunks(2), r"\[1, 2, 3, 4, 5, 6\] MiB.* Bucket 2 is not full with 5 MiB"),
    ("mistake", in_chunks(99), "Bucket 1 was full before its last parameter came"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
