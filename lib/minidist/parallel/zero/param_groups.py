"""Parameter groups: the names of their parameters, and their hyper-parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from minidist.parallel.sharding.partition import Named

Group = dict[str, Any]


def named_in(groups: Sequence[Group], first: int = 0) -> list[list[Named]]:
    """The parameters of the groups from number `first` on, by name or else by place."""
    found = []
    for number, group in enumerate(groups):
        places = [f"parameter {place} of group {number}" for place in range(len(group["params"]))]
        found.append(list(zip(group.get("param_names") or places, group["params"], strict=True)))
    return found[first:]


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
