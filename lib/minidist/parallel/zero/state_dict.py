"""The full state of an optimizer whose ranks keep shards of it, in torch.optim's format.

It knows nothing of ranks and buckets, so it loads on another number of ranks and into the bare
optimizer, and the bare optimizer's loads here. What is kept for a parameter is either a tensor with
an element for each of its own, as moments are, and is sharded as the parameter is; or a number,
such as the count of steps, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.comm import Comm
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.param_groups import Group, hyper, named_in, number_of

State = dict[str, Any]
Device = torch.device | str | None
Make = Callable[[list[Group]], Optimizer]  # optimizer_class with its defaults

# ---- saving ----


class Sharded(NamedTuple):
    """Stands for a tensor that is sharded as its parameter, where ranks list what they keep."""

    dtype: torch.dtype


def numbered(groups: Sequence[Group]) -> list[Group]:
    """The groups with numbers in place of the parameters, as in torch's state dicts."""
    numbers = number_of(groups)
    return [{**group, "params": [numbers[each] for each in group["params"]]} for group in groups]


def summarize(
    groups: Sequence[Group], inner: Optimizer, buckets: Sequence[ShardedBucket]
) -> dict[int, State]:
    """What this rank keeps, by the parameters' numbers; of sharded tensors only the dtype.

    Raises:
        TypeError: something is neither a number nor has an element for each of the shard's.
    """
    numbers, found = number_of(groups), {}
    for bucket in buckets:
        for parameter, shard in zip(bucket.parameters, bucket.shards, strict=True):
            if not len(shard) or shard not in inner.state:
                continue
            kept = found[numbers[parameter]] = dict(inner.state[shard])
            for key, value in kept.items():
                if torch.is_tensor(value) and value.shape == shard.shape:
                    kept[key] = Sharded(value.dtype)
                elif torch.is_tensor(value) and value.dim():
                    raise TypeError(
                        f"{bucket.name_of(parameter)}: expected '{key}' in the optimizer's state "
                        "to be a number or to have an element for each of the shard's "
                        f"{len(shard)}, got shape {tuple(value.shape)}"
                    )
                elif torch.is_tensor(value):
                    kept[key] = value.cpu()  # another rank's may be on another device
    return found


def gather_state(
    summary: dict[int, State],
    groups: Sequence[Group],
    inner: Optimizer,
    buckets: Sequence[ShardedBucket],
    comm: Comm,
    device: Device,
) -> dict[int, State]:
    """The full state on every rank, by the parameters' numbers; gathered a bucket at a time."""
    numbers = number_of(groups)
    summaries: list[Any] = [None] * comm.ranks
    dist.all_gather_object(summaries, summary, group=comm.group)
    known = {number: kept for each in reversed(summaries) for number, kept in each.items()}
    found = {number: dict(known[number]) for number in sorted(known)}
    for bucket in buckets:
        wanted: dict[tuple[str, Sharded], list[Parameter]] = {}
        for parameter in bucket.parameters:
            for key, value in known.get(numbers[parameter], {}).items():
                if isinstance(value, Sharded):
                    wanted.setdefault((key, value), []).append(parameter)
        for (key, sharded), parameters in wanted.items():
            flat = torch.zeros_like(bucket.buffer, dtype=sharded.dtype)
            own = bucket.flat.shard(flat)
            for shard, place in zip(bucket.shards, bucket.flat.pieces(own), strict=True):
                if shard in inner.state and key in inner.state[shard]:
                    place.copy_(inner.state[shard][key])
            comm.all_gather(flat, own)
            for parameter in parameters:
                view = bucket.view(flat, parameter)
                found[numbers[parameter]][key] = view.to(device or view.device, copy=True)
    return found


# ---- loading ----


def on_two_elements(make: Make, groups: Sequence[Group]) -> Optimizer:
    """The optimizer over one small tensor a group; what it refuses, it refuses of the real ones."""
    small = []
    for group in groups:
        like = next(iter(group["params"]), torch.zeros(0))
        small.append(
            {**hyper(group), "params": [torch.zeros(2, dtype=like.dtype, device=like.device)]}
        )
    return make(small)


def check_state_dict(
    state_dict: Any, groups: Sequence[Group], make: Make
) -> tuple[dict[int, State], list[set[str]]]:
    """Raise TypeError or ValueError unless it is a full state for these groups and this optimizer.

    Returns:
        the state by the numbers of these groups' parameters; and for each group the keys under
        which tensors are sharded as their parameter is.
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        got = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict)
        raise TypeError(f"state_dict: expected a dict with 'state' and 'param_groups', got {got}")
    saved, state = state_dict["param_groups"], state_dict["state"]
    if len(saved) != len(groups):
        raise ValueError(f"state_dict: expected {len(groups)} parameter groups, got {len(saved)}")
    for number, (mine, theirs) in enumerate(zip(groups, saved, strict=True)):
        if len(mine["params"]) != len(theirs["params"]):
            raise ValueError(
                f"state_dict: group {number}: expected {len(mine['params'])} parameters, got "
                f"{len(theirs['params'])}: it is that of another model"
            )
    keys = list(chain.from_iterable(group["params"] for group in saved))
    if unknown := [key for key in state if key not in keys]:
        raise ValueError(
            f"state_dict: expected state of the parameters 0 to {len(keys) - 1}, got some of "
            f"{unknown[0]!r}"
        )
    sharded = []
    for expected, named, group in zip(
        _rehearse(make, groups, saved), named_in(groups), saved, strict=True
    ):
        for (name, parameter), key in zip(named, group["params"], strict=True):
            if kept := state.get(key):
                _check_kept(name, parameter.shape, kept, expected)
        sharded.append({key for key, value in expected.items() if _is_sharded(value)})
    return {number: state[key] for number, key in enumerate(keys) if key in state}, sharded


def _rehearse(make: Make, groups: Sequence[Group], saved: Sequence[Group]) -> list[State]:
    """What the optimizer keeps for a tensor of each group, if it steps as the saved groups say."""
    trial = on_two_elements(make, groups)
    renumbered = [{**hyper(group), "params": [number]} for number, group in enumerate(saved)]
    try:
        trial.load_state_dict({"state": {}, "param_groups": renumbered})
        for group in trial.param_groups:
            group["params"][0].grad = torch.zeros_like(group["params"][0])
        trial.step()
    except Exception as error:
        raise ValueError(
            f"state_dict: {type(trial).__name__} cannot step with its parameter groups "
            f"({error!r}): they are another optimizer's"
        ) from error
    return [trial.state.get(group["params"][0], {}) for group in trial.param_groups]


def _is_sharded(value: Any) -> bool:
    return torch.is_tensor(value) and value.shape == (2,)


def _check_kept(name: str, shape: torch.Size, kept: State, expected: State) -> None:
    for key, value in expected.items():
        if key not in kept:
            raise ValueError(f"state_dict: {name}: expected '{key}' in its state, got {[*kept]}")
        got = kept[key]
        if _is_sharded(value) and not (torch.is_tensor(got) and got.shape == shape):
            like = tuple(got.shape) if torch.is_tensor(got) else f"a {type(got).__name__}"
            raise ValueError(
                f"state_dict: {name}: expected '{key}' of shape {tuple(shape)}, got {like}: it is "
                "that of another model"
            )


def shard_state(
    state: Mapping[int, State],
    sharded: Sequence[set[str]],
    groups: Sequence[Group],
    buckets: Sequence[ShardedBucket],
) -> dict[int, State]:
    """This rank's part of a full state; nothing for a parameter of which it owns nothing."""
    numbers, found = number_of(groups), {}
    for bucket in buckets:
        ranges = bucket.flat.ranges()
        for parameter, (start, end) in zip(bucket.parameters, ranges, strict=True):
            kept = state.get(numbers[parameter])
            if start == end or not kept:
                continue
            mine = found[numbers[parameter]] = dict(kept)
            for key, value in kept.items():
                if torch.is_tensor(value):
                    if key in sharded[bucket.group]:
                        value = bucket.flattened(value, parameter)[start:end]
                    mine[key] = value.clone()
    return found
