"""Which parameters share a part, in which order parts travel, and whose pieces are stepped on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minidist.comm.comm import Comm
from minidist.parallel.sharding.partition import Named, assign_alike
from minidist.parallel.zero.bucket import Part

Group = dict[str, Any]


def named_in(groups: Sequence[Group], first: int = 0) -> list[list[Named]]:
    """The parameters of each group, from the number `first` on, with their names.

    What they are called was passed with them, or else is told by their places.
    """
    found = []
    for number, group in list(enumerate(groups))[first:]:
        places = [f"parameter {place} of group {number}" for place in range(len(group["params"]))]
        found.append(list(zip(group.get("param_names") or places, group["params"], strict=True)))
    return found


def hyper(group: Group) -> Group:
    """All of a group but its parameters and their names."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def copy_hyper(source: Sequence[Group], target: Sequence[Group]) -> None:
    """Let the groups of one optimizer have the hyper-parameters of another's."""
    for one, other in zip(source, target, strict=True):
        other.update(hyper(one))


def pieces_of(groups: Sequence[Group], parts: Sequence[Part]) -> list[Group]:
    """The same groups, of this rank's pieces instead of the parameters."""
    piece_of = {
        parameter: piece
        for part in parts
        for parameter, piece in zip(part.parameters, part.pieces, strict=True)
    }
    return [
        {**hyper(group), "params": [piece_of[parameter] for parameter in group["params"]]}
        for group in groups
    ]


def parts_of(named: Sequence[Named], group: int, cap: float, comm: Comm) -> list[Part]:
    """The parts of a parameter group: filled from its end, as DDP's buckets, up to `cap` bytes.

    Those of a dtype and device together, and those frozen apart: they need not travel.
    """
    return [
        Part([named[index] for index in members], group, comm.ranks, comm.rank)
        for members in assign_alike([parameter for _, parameter in named], cap, cap)
    ]


def in_order(parts: Sequence[Part], groups: Sequence[Sequence[torch.Tensor]]) -> list[Part]:
    """The order in which parts may become full in backward, the same on all ranks.

    That is known of the parameters of one group, from its end to its beginning. Groups are taken to
    lie side by side, as those with and without weight decay do: parts go by how far from its
    group's beginning is the gradient that comes last.
    """
    places = [{parameter: place for place, parameter in enumerate(group)} for group in groups]

    def depth(part: Part) -> float:
        where = places[part.group]
        return min(where[parameter] for parameter in part.parameters) / len(where)

    ordered = sorted(parts, key=depth, reverse=True)
    for index, part in enumerate(ordered):
        part.index = index
    return ordered
