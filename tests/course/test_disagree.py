"""Ranks that disagree: the lab's exercise, and what the page says of shards."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course.graders import disagree as grade
from course.graders.disagree import Part, Records
from minidist import launch
from tests.course.verdicts import diagnosed


def found(
    *, names: bool = False, shortest: bool = False, last: bool = False, first: int = 1
) -> Callable[[Records], Part]:
    """Right as it stands, with a knob for each way to get it wrong."""

    def by_hand(records: Records) -> Part:
        rows: Sequence[Any] = list((zip if shortest else zip_longest)(*records))
        if names:
            rows = [[call and call[0] for call in row] for row in rows]
        numbered = list(enumerate(rows, first))
        for number, row in reversed(numbered) if last else numbered:
            ((usual, _),) = Counter(row).most_common(1)
            if odd := [rank for rank, call in enumerate(row) if call != usual]:
                return number, odd
        return None

    return by_hand


def from_rank_0(records: Records) -> Part:
    for number, row in enumerate(zip_longest(*records), 1):
        if odd := [rank for rank, call in enumerate(row) if call != row[0]]:
            return number, odd
    return None


def with_three(records: Records) -> Part:
    return found()(records[:3])


def emptied(records: Records) -> Part:
    answer = found()(records)
    for own in records:
        own.clear()
    return answer


def test_other_right_ways_are_right_too() -> None:
    assert grade.first_difference(found())
    assert grade.first_difference(lambda records: (a := found()(records)) and (a[0], {*a[1]}))  # type: ignore[arg-type, return-value]


WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.first_difference] = [
    ("mistake", from_rank_0, r"call on rank 0 of 4 .* name the ranks that are few"),
    ("mistake", found(names=True), r"shape on rank 1 of 3 you say None.*Compare shapes, too"),
    ("mistake", found(shortest=True), r"early end .* you say None.*never comes to a call differs"),
    ("mistake", found(last=True), "An earlier call differs: what follows is a consequence"),
    ("off by one", found(first=0), "Calls are counted from 1"),
    ("constant", lambda records: None, r"it is \(3, \[1\]\)"),
    ("constant", lambda records: (3, [1]), "With nothing wrong on 1 ranks you say"),
    ("these sizes", with_three, "of (5|6|7|8|9) you say"),
    ("input", emptied, "the records are changed"),
    ("type", lambda records: 3, r"expected \(number, list of ranks\) or None"),
    ("type", lambda records: "rank 1", r"you return 'rank 1'; expected"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)


def shards_that_differ() -> tuple[bool, bool]:
    """Under hybrid sharding: whether shards differ among replicas, and among all ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    fully_shard(net, mesh=mesh)
    bits = [each.to_local().detach().view(torch.int32).sum() for each in net.parameters()]  # type: ignore[attr-defined]
    differ = []
    for group in (mesh["replicate"].get_group(), None):
        low, high = torch.stack(bits), torch.stack(bits)
        dist.all_reduce(low, dist.ReduceOp.MIN, group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group)
        differ.append(not low.equal(high))
    return differ[0], differ[1]


def test_under_sharding_a_fingerprint_compares_replicas_alone() -> None:
    assert launch(shards_that_differ, 4, device="cpu") == [(False, True)] * 4
