"""Whether a saved state is one for this optimizer: all of it is looked at before any is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from minidist.parallel.zero.bucket import Part
from minidist.parallel.zero.param_groups import Group, named_in

SHARD = "shard"  # under which a rank's own state says whose it is

# What torch's optimizers keep as numbers. It matters only where all parameters are numbers too.
NUMBERS = {"step", "eta", "mu", "mu_product"}


def elementwise(
    state: Mapping[Any, Mapping[str, Any]], shapes: Mapping[Any, torch.Size]
) -> set[str]:
    """The keys under which tensors have an element for each of the parameter's.

    Args:
        state: the whole of it, by whatever names parameters.
        shapes: of the parameters, by the same.
    """
    found, numbers = set(), set(NUMBERS)
    for name, kept in state.items():
        for key, value in kept.items():
            if torch.is_tensor(value) and value.dim():
                found.add(key)
            elif shapes[name]:
                numbers.add(key)
    keys = set(chain(*(kept.keys() for kept in state.values())))
    return found | (keys - numbers)


def check_whole(state_dict: Any, groups: Sequence[Group]) -> dict[Any, int]:
    """Raise TypeError or ValueError unless it is a whole state for these groups.

    Returns:
        what the state calls each parameter → its number here.
    """
    _check_form(state_dict, groups)
    if SHARD in state_dict:
        raise ValueError(
            f"{_where()}: state_dict: expected a whole one, got that of rank "
            f"{state_dict[SHARD]['rank']} alone; use load_state_dict, on as many ranks"
        )
    keys = list(chain(*(group["params"] for group in state_dict["param_groups"])))
    named = list(chain(*named_in(groups)))
    number_of = {key: number for number, key in enumerate(keys)}
    state = state_dict["state"]
    shapes = {key: named[number][1].shape for key, number in number_of.items()}
    for key in state:
        if key not in number_of:
            raise ValueError(
                f"{_where()}: state_dict: expected state of the parameters 0 to {len(named) - 1}, "
                f"got some of {key!r}"
            )
    cut = elementwise(state, shapes)
    for key, number in number_of.items():
        for moment in sorted(cut & state.get(key, {}).keys()):
            got, want = state[key][moment], shapes[key]
            if torch.is_tensor(got) and got.shape != want:
                raise ValueError(
                    f"{_where()}: state_dict: {named[number][0]}: expected '{moment}' of shape "
                    f"{tuple(want)}, got {tuple(got.shape)}: it is that of another model"
                )
    return number_of


def header(groups: Sequence[Group], parts: Sequence[Part]) -> dict[str, Any]:
    """Whose state it is: which rank's, and which elements of each parameter."""
    flat = parts[0].flat
    ranges = {
        parameter: bounds
        for part in parts
        for parameter, bounds in zip(part.parameters, part.flat.ranges(), strict=True)
    }
    owned = [
        {"name": name, "shape": list(parameter.shape), "elements": list(ranges[parameter])}
        for name, parameter in chain(*named_in(groups))
    ]
    return {"rank": flat.rank, "ranks": flat.ranks, "parameters": owned}


def check_own(state_dict: Any, groups: Sequence[Group], parts: Sequence[Part]) -> None:
    """Raise TypeError or ValueError unless it was saved by this rank, of the same parts."""
    _check_form(state_dict, groups)
    if SHARD not in state_dict:
        raise ValueError(
            f"{_where()}: state_dict: expected one rank's own, as state_dict() gives it, got a "
            "whole one; use load_full_state_dict"
        )
    own, saved = header(groups, parts), state_dict[SHARD]
    if (own["rank"], own["ranks"]) != (saved["rank"], saved["ranks"]):
        raise ValueError(
            f"{_where()}: state_dict: expected that of rank {own['rank']} of {own['ranks']}, got "
            f"that of rank {saved['rank']} of {saved['ranks']}; what full_state_dict() gives can "
            "be loaded on any number of ranks"
        )
    for mine, theirs in zip(own["parameters"], saved["parameters"], strict=True):
        for fact in ("shape", "elements"):
            if mine[fact] != theirs[fact]:
                why = "it is that of another model"
                if fact == "elements":
                    why = "bucket_cap_mb or the groups were others"
                raise ValueError(
                    f"{_where()}: state_dict: {mine['name']}: expected {fact} {mine[fact]}, got "
                    f"{theirs[fact]}: {why}"
                )


def _where() -> str:
    return f"rank {dist.get_rank()}"


def _check_form(state_dict: Any, groups: Sequence[Group]) -> None:
    """What both have in common: the groups."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        got = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict)
        raise TypeError(
            f"{_where()}: state_dict: expected a dict with 'state' and 'param_groups', got {got}"
        )
    saved = state_dict["param_groups"]
    if len(saved) != len(groups):
        raise ValueError(
            f"{_where()}: state_dict: expected {len(groups)} parameter groups, got {len(saved)}"
        )
    for number, (mine, theirs) in enumerate(zip(groups, saved, strict=True)):
        if len(mine["params"]) != len(theirs["params"]):
            raise ValueError(
                f"{_where()}: state_dict: group {number}: expected {len(mine['params'])} "
                f"parameters, got {len(theirs['params'])}: it is that of another model"
            )
