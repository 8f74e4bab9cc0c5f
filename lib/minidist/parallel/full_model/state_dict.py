"""A model in full, whatever wraps it: its state and its gradients under the bare module's names.

The state of a bare module is what any wrapper gives and takes: so what was saved on four ranks
loads on three, or into one process, wrapped otherwise or not at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from minidist.comm.comm import gather_objects
from minidist.parallel.ddp.ddp import PREFIX
from minidist.parallel.fsdp.fully_shard import LABEL, units
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.full_model.shards import (
    bare,
    comms,
    sharded_gradients,
    sharded_parameters,
    whoami,
)
from minidist.parallel.sharding.rows import RowLayout


@torch.no_grad()
def full_state_dict(
    module: nn.Module, *, device: torch.device | str | None = None
) -> dict[str, Any]:
    """The state dict that the bare module would have, of whole tensors; a copy.

    Every rank must call it, and gets it.

    Args:
        module: bare, or wrapped in DDP (minidist's or torch's), or with units of `fully_shard`;
            a ZeroOptimizer may hold its parameters.
        device: where the tensors go, such as "cpu"; where they are if None.

    Raises:
        ValueError: `module` is a part of a unit.
    """
    inner = bare(module)
    copies: dict[torch.Tensor, torch.Tensor] = {}
    for params in sharded_parameters(inner):
        wholes = params.gather(params.shards)
        for parameter, whole in zip(params.parameters, wholes, strict=True):
            copies[parameter] = whole.to(device or whole.device, copy=True)
        del wholes, whole  # before the next group comes
    state: dict[str, Any] = inner.state_dict(keep_vars=True)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            if value not in copies:
                copies[value] = value.detach().to(device or value.device, copy=True)
            state[name] = copies[value]
    for metadata in state._metadata.values():  # type: ignore[attr-defined]
        metadata.pop(LABEL, None)
    return state


@torch.no_grad()
def load_full_state_dict(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Give the module a state that `full_state_dict` or a bare module's `state_dict` made.

    Every rank must call it, with the same state: each takes its own part, and reads no more of a
    file that is mapped (`torch.load(path, mmap=True)`). The number of ranks and the wrapper may be
    others than when it was made. Unless all fits on all ranks, nothing changes.

    Args:
        module: as for `full_state_dict`.
        state_dict: name → whole tensor, on any device, of a dtype that converts to the module's.
            Names may also begin with "module.", as PyTorch's DDP saves them.

    Raises:
        TypeError, ValueError: on every rank, naming the first rank that something is wrong on, and
            the first name there that is missing, too many, or of another shape or dtype.
    """
    inner = bare(module)
    sharded_parameters(inner)  # of all of a unit, and resharded
    place: dict[torch.Tensor, tuple[RowLayout, int]] = {}
    for group in (group for unit in units(inner) for group in unit.groups):
        place |= {shard: (group.layout, index) for index, shard in enumerate(group.shards)}
    own = inner.state_dict(keep_vars=True)
    mine: OrderedDict[str, Any] = OrderedDict()
    problem = f"expected a dict, got a {type(state_dict).__name__}"
    if isinstance(state_dict, Mapping):
        names = {name: name if name in own else name.removeprefix(PREFIX) for name in state_dict}
        mine.update((names[name], value) for name, value in state_dict.items())
        problem = _misfit(own, mine)
    problem = problem and f"{whoami()}load_full_state_dict: {problem}"
    for comm in comms(module):
        problem = next(filter(None, gather_objects(comm, problem)), "")
    if problem:
        raise ValueError(problem)
    given: dict[str, Any] = getattr(state_dict, "_metadata", {})
    mine._metadata = {  # type: ignore[attr-defined]  # versions that were saved, labels of shards
        name: given.get(name, {}) | {key: value for key, value in each.items() if key == LABEL}
        for name, each in own._metadata.items()  # type: ignore[attr-defined]
    }
    for name, value in own.items():
        if isinstance(value, Shard):
            layout, index = place[value]
            mine[name] = layout.piece(index, mine[name])
    inner.load_state_dict(mine)


@torch.no_grad()
def full_gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The whole averaged gradient of each parameter, under the bare module's names.

    Every rank must call it, after backward; `module` is as for `full_state_dict`. Gradients that
    wrappers only accumulate, not averaged yet, are left out (FSDP) or this rank's own (DDP); a
    ZeroOptimizer with local gradients averages them now, as its `step()` would.

    Returns:
        name → a copy of the gradient, or None where there is none; as in `named_parameters()`.
    """
    inner = bare(module)
    found: dict[torch.Tensor, torch.Tensor | None] = {}
    for params in sharded_gradients(inner):
        used = params.used()
        found |= dict.fromkeys(params.parameters)
        if any(used):
            wholes = params.gather([shard.grad for shard in params.shards])
            for parameter, whole, flag in zip(params.parameters, wholes, used, strict=True):
                found[parameter] = whole.clone() if flag else None
    for parameter in inner.parameters():
        if parameter not in found:
            found[parameter] = None if parameter.grad is None else parameter.grad.detach().clone()
    return {name: found[parameter] for name, parameter in inner.named_parameters()}


def _misfit(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The first name of the module that a state does not fit, or that it has too many; or ""."""
    for name, mine in own.items():
        given = state.get(name)
        if not isinstance(mine, torch.Tensor):
            if name not in state:
                return f"'{name}': expected what set_extra_state takes, got nothing"
            continue
        if mine.is_meta:
            return f"'{name}': is on the meta device; call minidist.materialize before"
        shape = mine.whole_shape if isinstance(mine, Shard) else mine.shape
        expected = f"'{name}': expected {_described(shape, mine.dtype)}, got "
        if not isinstance(given, torch.Tensor):
            return expected + (f"a {type(given).__name__}" if name in state else "nothing")
        if given.shape != shape or not torch.can_cast(given.dtype, mine.dtype):
            return expected + _described(given.shape, given.dtype)
    return next((f"'{name}': expected nothing, got it" for name in state if name not in own), "")


def _described(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"
