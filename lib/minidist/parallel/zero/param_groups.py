"""Parameter groups: their names and hyper-parameters, and the order of the buckets they fill."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from minidist.parallel.sharding.partition import Named
from minidist.parallel.zero.bucket import ShardedBucket

Group = dict[str, Any]


def named_in(groups: Sequence[Group], first: int = 0) -> list[list[Named]]:
    """The parameters of the groups from number `first` on, by name or else by place."""
    found = []
    for number, group in list(enumerate(groups))[first:]:
        places = [f"parameter {place} of group {number}" for place in range(len(group["params"]))]
        found.append(list(zip(group.get("param_names") or places, group["params"], strict=True)))
    return found


def number_of(groups: Sequence[Group]) -> dict[torch.Tensor, int]:
    """Each parameter's number in a state dict: counted through all groups."""
    every = chain.from_iterable(group["params"] for group in groups)
    return {parameter: number for number, parameter in enumerate(every)}


def hyper(group: Group) -> Group:
    """All of a group but its parameters and their names."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def copy_hyper(source: Sequence[Group], target: Sequence[Group]) -> None:
    """Give the groups of one optimizer the hyper-parameters of another's."""
    for one, other in zip(source, target, strict=True):
        other.update(hyper(one))


def in_backward_order(
    buckets: Sequence[ShardedBucket], groups: Sequence[Group]
) -> list[ShardedBucket]:
    """The buckets in the order in which backward should fill them, the same on all ranks.

    Within a group that is from its end to its beginning. Groups are taken to lie side by side, as
    those with and without weight decay do: a bucket's place is how far its first parameter is from
    the beginning of its group.
    """
    places = [{each: place for place, each in enumerate(group["params"])} for group in groups]

    def depth(bucket: ShardedBucket) -> float:
        where = places[bucket.group]
        return min(where[parameter] for parameter in bucket.parameters) / len(where)

    ordered = sorted(buckets, key=depth, reverse=True)
    for index, bucket in enumerate(ordered):
        bucket.index = index
    return ordered
