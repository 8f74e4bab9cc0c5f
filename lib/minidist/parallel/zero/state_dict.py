"""The full state of an optimizer whose ranks keep shards of it, in torch.optim's format.

It knows nothing of ranks and buckets, so it loads on another number of ranks and into the bare
optimizer, and the bare optimizer's loads here. What is kept for a parameter is either a tensor with
an element for each of its own, as moments are, and is sharded as the parameter is; or a number,
such as the count of steps, which is the same on all ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.agreement import gather_objects
from minidist.comm.comm import Comm
from minidist.parallel.zero.bucket import ShardedBucket

Group = dict[str, Any]
State = dict[str, Any]
Make = Callable[[list[Group]], Optimizer]  # optimizer_class with its defaults


def parameters_of(groups: Sequence[Group]) -> list[Parameter]:
    return [parameter for group in groups for parameter in group["params"]]


def gather_state(
    inner: Optimizer,
    buckets: Sequence[ShardedBucket],
    comm: Comm,
    device: torch.device | str | None,
) -> dict[int, State]:
    """The full state on every rank, by the parameters' numbers; gathered a bucket at a time."""
    numbers = {shard: number for number, shard in enumerate(parameters_of(inner.param_groups))}
    mine = {
        # Of a sharded tensor the dtype; numbers on the CPU, for ranks may use other devices.
        number: {
            key: (value.dtype if value.dim() else value.cpu()) if torch.is_tensor(value) else value
            for key, value in inner.state[shard].items()
        }
        for shard, number in numbers.items()
        if len(shard) and shard in inner.state
    }
    full: dict[int, State] = {}
    for each in reversed(gather_objects(comm, mine)):
        full.update(each)
    full = dict(sorted(full.items()))
    for bucket in buckets:
        kept = [full.get(numbers[shard], {}) for shard in bucket.shards]
        items = chain.from_iterable(state.items() for state in kept)
        for key, dtype in dict.fromkeys(each for each in items if isinstance(each[1], torch.dtype)):
            flat = torch.zeros_like(bucket.buffer, dtype=dtype)
            own = bucket.flat.shard(flat)
            for shard, place in zip(bucket.shards, bucket.flat.pieces(own), strict=True):
                if shard in inner.state and key in inner.state[shard]:
                    place.copy_(inner.state[shard][key])
            comm.all_gather(flat, own)
            for state, view in zip(kept, bucket.views_of(flat), strict=True):
                if state.get(key) is dtype:
                    state[key] = view.to(device or view.device, copy=True)
    return full


def shrunk(make: Make, groups: Sequence[Group]) -> Optimizer:
    """The optimizer over small parameters; what it refuses, it refuses of the real ones."""
    return make(
        [{**group, "params": [each.new_zeros(2) for each in group["params"]]} for group in groups]
    )


def shard_state(
    state_dict: Any,
    groups: Sequence[Group],
    bucket_of: Mapping[Parameter, ShardedBucket],
    make: Make,
) -> State:
    """This rank's part of a full state; TypeError or ValueError if it is none of this optimizer."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise TypeError(
            f"state_dict: expected a dict with 'state' and 'param_groups', got {state_dict!r:.80}"
        )
    examples = _rehearse(make, groups, state_dict["param_groups"])
    keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    own = {}
    for key, parameter, example in zip(keys, parameters_of(groups), examples, strict=True):
        if kept := state_dict["state"].get(key):
            bucket = bucket_of[parameter]
            _check_kept(bucket.name_of[parameter], parameter.shape, kept, example)
            mine = dict(kept)
            for what, value in kept.items():
                if _is_sharded(example.get(what)):
                    mine[what] = bucket.part(value, parameter).clone()
                elif isinstance(value, Tensor):
                    mine[what] = value.clone()
            start, end = bucket.ranges[parameter]
            if start < end:
                own[key] = mine
    return {"state": own, "param_groups": state_dict["param_groups"]}


def _rehearse(make: Make, groups: Sequence[Group], saved: Sequence[Group]) -> list[State]:
    """Return what the optimizer keeps for each parameter if it steps as the saved groups say."""
    trial = shrunk(make, groups)
    try:
        trial.load_state_dict({**trial.state_dict(), "param_groups": saved})
        parameters = parameters_of(trial.param_groups)
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
    return isinstance(value, Tensor) and value.shape == (2,)


def _check_kept(name: str, shape: torch.Size, kept: State, example: State) -> None:
    for key, value in example.items():
        if key not in kept:
            raise ValueError(f"state_dict: {name}: expected '{key}' in its state, got {[*kept]}")
        got = kept[key]
        if _is_sharded(value) and not (isinstance(got, Tensor) and got.shape == shape):
            like = tuple(got.shape) if isinstance(got, Tensor) else f"a {type(got).__name__}"
            raise ValueError(
                f"state_dict: {name}: expected '{key}' of shape {tuple(shape)}, got {like}: it is "
                "that of another model"
            )
