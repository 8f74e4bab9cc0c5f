"""The full state of an optimizer whose ranks keep shards of it, in torch.optim's format.

It knows nothing of ranks and buckets, so it loads on another number of ranks and into the bare
optimizer, and the bare optimizer's loads here. What is kept for a parameter is either a tensor with
an element for each of its own, as moments are, and is sharded as the parameter is; or a number,
such as the count of steps, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.comm import Comm, gather_objects
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.param_groups import Group, hyper, named_in, number_of

State = dict[str, Any]
Device = torch.device | str | None
Make = Callable[[list[Group]], Optimizer]  # optimizer_class with its defaults

# ---- saving ----


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
                if not torch.is_tensor(value):
                    continue
                if value.shape == shard.shape:
                    kept[key] = value.dtype
                elif value.dim():
                    raise TypeError(
                        f"{bucket.name_of[parameter]}: expected '{key}' in the optimizer's state "
                        "to be a number or to have an element for each of the shard's "
                        f"{len(shard)}, got shape {tuple(value.shape)}"
                    )
                else:
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
    numbers, full = number_of(groups), {}
    for each in reversed(gather_objects(comm, summary)):
        full.update(each)
    full = {number: dict(full[number]) for number in sorted(full)}
    for bucket in buckets:
        wanted: dict[tuple[str, torch.dtype], list[Parameter]] = {}
        for parameter in bucket.parameters:
            for key, value in full.get(numbers[parameter], {}).items():
                if isinstance(value, torch.dtype):
                    wanted.setdefault((key, value), []).append(parameter)
        for (key, dtype), parameters in wanted.items():
            flat = torch.zeros_like(bucket.buffer, dtype=dtype)
            own = bucket.flat.shard(flat)
            for shard, place in zip(bucket.shards, bucket.flat.pieces(own), strict=True):
                if shard in inner.state and key in inner.state[shard]:
                    place.copy_(inner.state[shard][key])
            comm.all_gather(flat, own)
            for parameter in parameters:
                view = bucket.view(flat, parameter)
                full[numbers[parameter]][key] = view.to(device or view.device, copy=True)
    return full


# ---- loading ----


def on_two_elements(make: Make, groups: Sequence[Group]) -> Optimizer:
    """The optimizer over one small tensor a group; what it refuses, it refuses of the real ones."""
    small = []
    for group in groups:
        like = next(iter(group["params"]), torch.zeros(0))
        values = torch.zeros(2, dtype=like.dtype, device=like.device)
        small.append({**hyper(group), "params": [values]})
    return make(small)


def shard_state(
    state_dict: Any, groups: Sequence[Group], buckets: Sequence[ShardedBucket], make: Make
) -> dict[int, State]:
    """This rank's part of a full state, by the numbers of these groups' parameters.

    Raises:
        TypeError, ValueError: it is not a full state of these groups and this optimizer.
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
    expected = _rehearse(make, groups, saved)
    ranges = {
        parameter: (bucket, *range_)
        for bucket in buckets
        for parameter, range_ in zip(bucket.parameters, bucket.flat.ranges(), strict=True)
    }
    found = {}
    named = chain.from_iterable(named_in(groups))
    for number, (key, (name, parameter)) in enumerate(zip(keys, named, strict=True)):
        bucket, start, end = ranges[parameter]
        kept, like = state.get(key), expected[bucket.group]
        if not kept:
            continue
        _check_kept(name, parameter.shape, kept, like)
        if start < end:
            mine = found[number] = dict(kept)
            for what, value in kept.items():
                if _is_sharded(like.get(what)):
                    mine[what] = bucket.flattened(value, parameter)[start:end].clone()
                elif torch.is_tensor(value):
                    mine[what] = value.clone()
    return found


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
