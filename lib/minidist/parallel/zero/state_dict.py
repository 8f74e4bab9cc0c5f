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


def numbered(groups: Sequence[Group]) -> list[Group]:
    """The groups with numbers in place of the parameters, as in torch's state dicts."""
    numbers = number_of(groups)
    return [{**group, "params": [numbers[each] for each in group["params"]]} for group in groups]


def gather_state(
    groups: Sequence[Group],
    inner: Optimizer,
    buckets: Sequence[ShardedBucket],
    comm: Comm,
    device: Device,
) -> dict[int, State]:
    """The full state on every rank, by the parameters' numbers; gathered a bucket at a time."""
    numbers, full = number_of(groups), {}
    for each in reversed(gather_objects(comm, _summary(numbers, inner, buckets))):
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


def _summary(
    numbers: Mapping[torch.Tensor, int], inner: Optimizer, buckets: Sequence[ShardedBucket]
) -> dict[int, State]:
    """What this rank keeps, by the parameters' numbers; of sharded tensors only the dtype."""

    def short(value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        return value.dtype if value.dim() else value.cpu()  # each rank's may be on another device

    return {
        numbers[parameter]: {key: short(value) for key, value in inner.state[shard].items()}
        for bucket in buckets
        for parameter, shard in zip(bucket.parameters, bucket.shards, strict=True)
        if len(shard) and shard in inner.state
    }


def on_two_elements(make: Make, groups: Sequence[Group]) -> Optimizer:
    """The optimizer over small parameters; what it refuses, it refuses of the real ones."""
    small = []
    for group in groups:
        values = [each.new_zeros(2) for each in group["params"]]
        small.append({**hyper(group), "params": values})
    return make(small)


def shard_state(
    state_dict: Any, groups: Sequence[Group], buckets: Sequence[ShardedBucket], make: Make
) -> dict[int, State]:
    """This rank's part of a full state, by the numbers of these groups' parameters.

    Raises:
        TypeError, ValueError: it is not a full state of these groups and this optimizer.
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise TypeError(
            f"state_dict: expected a dict with 'state' and 'param_groups', got {state_dict!r:.80}"
        )
    expected = _rehearse(make, groups, state_dict["param_groups"])
    keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    owned = {
        parameter: (bucket, start, end)
        for bucket in buckets
        for parameter, (start, end) in zip(bucket.parameters, bucket.flat.ranges(), strict=True)
    }
    found = {}
    named = chain.from_iterable(named_in(groups))
    for number, (key, (name, parameter)) in enumerate(zip(keys, named, strict=True)):
        bucket, start, end = owned[parameter]
        kept = state_dict["state"].get(key)
        if not kept:
            continue
        _check_kept(name, parameter.shape, kept, expected[number])
        if start == end:
            continue
        mine = found[number] = dict(kept)
        for what, value in kept.items():
            if _is_sharded(expected[number].get(what)):
                mine[what] = bucket.flattened(value, parameter)[start:end].clone()
            elif torch.is_tensor(value):
                mine[what] = value.clone()
    return found


def _rehearse(make: Make, groups: Sequence[Group], saved: Sequence[Group]) -> list[State]:
    """What the optimizer keeps for each parameter, if it steps as the saved groups say."""
    trial = on_two_elements(make, groups)
    try:
        trial.load_state_dict({"state": {}, "param_groups": saved})
        parameters = list(chain.from_iterable(group["params"] for group in trial.param_groups))
        for each in parameters:
            if each.is_floating_point() or each.is_complex():
                each.grad = torch.zeros_like(each)
        trial.step()
    except Exception as error:
        raise ValueError(
            f"state_dict: {type(trial).__name__} cannot step with its parameter groups "
            f"({error!r}): they are another model's or optimizer's"
        ) from error
    return [trial.state.get(each, {}) for each in parameters]


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
