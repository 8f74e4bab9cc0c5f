"""A model in full, whatever wraps it: its state and its gradients, under the bare module's names.

FSDP's units and a ZeroOptimizer leave each rank a shard. What is gathered from all of them is what
one process would have: so what was saved on four ranks loads on three, or into one process, wrapped
otherwise or not at all.

[Note: the global norm] The norm of a vector is the norm of the norms of its parts. So each rank
takes that of its shards, and one number of each rank is gathered.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import chain
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minidist.comm.agreement import agree_on, gather_objects
from minidist.comm.comm import Comm, on_some_rank
from minidist.comm.ours import Ours
from minidist.parallel.fsdp.shard import no_torch_function
from minidist.parallel.holders import LABEL, PREFIX, ShardedParams, holders


def bare(module: nn.Module) -> nn.Module:
    """Return the module without the DDP around it, minidist's or torch's."""
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise TypeError(f"{whoami()}module: expected a torch.nn.Module, got a {kind}")
    return cast("nn.Module", module.module) if hasattr(module, "process_group") else module


def sharded(module: Any, *, gradients: bool) -> list[ShardedParams]:
    """Return the parameters whose values are sharded, or else whose averaged gradients are."""
    found: list[ShardedParams] = []
    parts = set(module.modules())
    for holder in holders(module):
        if not parts.issuperset(holder.modules):
            raise ValueError(
                f"{whoami()}module: expected all of a unit, got a part of one, which holds "
                "other modules too"
            )
        found += holder.sharded(gradients)
    there = {shard for params in found for shard in params.shards}
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "part_of") and parameter not in there:
            raise ValueError(
                f"{whoami()}module: expected all of a unit, got a part of one: {name} is "
                f"{parameter.title()}, which is round it"
            )
    return found


def comms(module: Any) -> list[Comm]:
    """One for each group that shares the module; of a holder, that of its shards comes first.

    What is passed on in one group after the other then reaches all ranks.
    """
    found: list[Comm] = []
    if hasattr(module, "process_group"):
        found.append(getattr(module, "comm", None) or Ours(module.process_group))
    every = [holder.comms for holder in holders(module)]
    for place in range(max(map(len, every), default=0)):
        found += (each[place] for each in every if place < len(each))
    return list({comm.group: comm for comm in found}.values())


def whoami() -> str:
    return f"rank {dist.get_rank()}: " if dist.is_initialized() else ""


@torch.no_grad()
def full_state_dict(
    module: nn.Module, *, device: torch.device | str | None = None
) -> dict[str, Any]:
    """The state dict that the bare module would have, of full tensors; a copy.

    Every rank must call it, and gets it.

    Args:
        module: bare, or wrapped in DDP (minidist's or torch's), or with units of `fully_shard`;
            a ZeroOptimizer may hold its parameters.
        device: where the tensors go, such as "cpu"; where they are if None.

    Raises ValueError if `module` is a part of a unit.
    """
    inner = bare(module)
    copies: dict[torch.Tensor, torch.Tensor] = {}
    for params in sharded(inner, gradients=False):
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
        state_dict: name → full tensor, on any device, of a dtype that converts to the module's.
            Names may also begin with "module.", as PyTorch's DDP saves them.

    Raises:
        TypeError, ValueError: on every rank, naming the first rank that something is wrong on, and
            the first name there that is missing, too many, or of another shape or dtype.
    """
    inner = bare(module)
    sharded(inner, gradients=False)  # checks that units are complete, and reshards them
    own = inner.state_dict(keep_vars=True)
    mine: OrderedDict[str, Any] = OrderedDict()
    problem = f"expected a dict, got a {type(state_dict).__name__}"
    if isinstance(state_dict, Mapping):
        for name, value in state_dict.items():
            mine[name if name in own else name.removeprefix(PREFIX)] = value
        problem = _misfit(own, mine)
    problem = problem and f"{whoami()}load_full_state_dict: {problem}"
    for comm in comms(module):
        problem = next(filter(None, gather_objects(comm, problem)), "")
    if problem:
        raise ValueError(problem)
    mine._metadata = own._metadata  # type: ignore[attr-defined]  # whose shards they will be
    for name, value in own.items():
        if hasattr(value, "part_of"):
            mine[name] = value.part_of(mine[name])
    inner.load_state_dict(mine)


def _misfit(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The first name of the module that a state does not fit, or that it has too many; or ""."""
    for name, mine in own.items():
        if name not in state:
            return f"'{name}': expected {_described(mine)}, got nothing"
        given = state[name]
        if isinstance(mine, torch.Tensor):
            if mine.is_meta:
                return f"'{name}': is on the meta device; call minidist.materialize before"
            shape = getattr(mine, "whole_shape", mine.shape)
            fits = isinstance(given, torch.Tensor) and given.shape == shape
            if not (fits and torch.can_cast(given.dtype, mine.dtype)):
                return f"'{name}': expected {_described(mine)}, got {_described(given)}"
    return next((f"'{name}': expected nothing, got it" for name in state if name not in own), "")


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        shape = getattr(value, "whole_shape", value.shape)
        return f"{tuple(shape)} {value.dtype}"
    return f"type {type(value).__name__}"


@torch.no_grad()
def full_gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The full averaged gradient of each parameter, under the bare module's names.

    Every rank must call it, after backward; `module` is as for `full_state_dict`. Gradients that
    wrappers only accumulate, not averaged yet, are left out (FSDP) or this rank's own (DDP); a
    ZeroOptimizer with local gradients averages them now, as its `step()` would.

    Returns:
        name → a copy of the gradient, or None where there is none; as in `named_parameters()`.
    """
    inner = bare(module)
    found: dict[torch.Tensor, torch.Tensor | None] = {}
    for params in sharded(inner, gradients=True):
        parts = [shard.grad for shard in params.shards]
        here = [part is not None for part in parts]
        used = on_some_rank(here, params.shards[0].device, params.comm)
        found |= dict.fromkeys(params.parameters)
        if any(used):
            for parameter, whole, flag in zip(
                params.parameters, params.gather(parts), used, strict=True
            ):
                found[parameter] = whole.clone() if flag else None
    for parameter in inner.parameters():
        if parameter not in found:
            found[parameter] = None if parameter.grad is None else parameter.grad.detach().clone()
    return {name: found[parameter] for name, parameter in inner.named_parameters()}


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients so that their global norm is at most `max_norm`: [Note: the global norm].

    As `torch.nn.utils.clip_grad_norm_`, but it takes the module, as `full_state_dict` does. Every
    rank must call it, after backward and before the step. Gradients outside FSDP's units must be
    the same on all ranks.

    Args:
        module: whose gradients; parameters without one are skipped.
        max_norm: the largest norm that is left as it is; 0 or more.
        norm_type: p of the p-norm, above 0; `math.inf` for the largest absolute value.

    Returns:
        The norm before clipping, 0-dimensional, the same bits on all ranks; in the dtype of the
        parameters, float32 at least. An infinite or NaN norm scales too, as with PyTorch.

    Raises:
        TypeError, ValueError: `max_norm` or `norm_type` is no number, or not in its range.
        MismatchError: they differ between ranks; where checks are on.
    """
    inner = bare(module)
    facts: dict[str, Any] = {"max_norm": max_norm, "norm_type": norm_type}
    problem: Exception | None = None
    for name, number in facts.items():
        if isinstance(number, str | bool) or not hasattr(number, "__float__"):
            problem = TypeError(f"{name}: expected a number, got {number!r}")
    if not problem:
        facts = {name: float(number) for name, number in facts.items()}
        if not (max_norm >= 0 and norm_type > 0):
            problem = ValueError(f"expected max_norm >= 0 and norm_type > 0, got {facts}")
    for comm in comms(module):
        agree_on(comm, "clip_grad_norm_", facts, problem)
    if problem:
        raise type(problem)(f"{whoami()}clip_grad_norm_: {problem}")

    params = sharded(inner, gradients=True)
    elsewhere = {parameter for each in params for parameter in each.parameters}
    own = [parameter for parameter in inner.parameters() if parameter not in elsewhere]
    shards = [shard for each in params for shard in each.shards]
    device = shards[0].device if shards else None  # a number from the host would be waited for
    norms = [_norm(own, norm_type, device)]
    for comm in {each.comm.group: each.comm for each in params}.values():
        mine = [each.shards for each in params if each.comm.group is comm.group]
        norm = _norm(chain(*mine), norm_type, device).view(1)
        everyones = norm.new_empty(comm.ranks)
        comm.all_gather(everyones, norm)
        norms.append(torch.linalg.vector_norm(everyones, norm_type))
    every = [*own, *shards]
    dtypes = (parameter.dtype.to_real() for parameter in every if parameter.requires_grad)
    dtype = reduce(torch.promote_types, dtypes, torch.float32)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type).to(dtype)
    torch.nn.utils.clip_grads_with_norm_(every, max_norm, total)
    return total


def _norm(
    parameters: Iterable[Parameter], norm_type: float, device: torch.device | None
) -> torch.Tensor:
    with no_torch_function():
        gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
        gradients = [gradient.as_subclass(torch.Tensor) for gradient in gradients]
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.nn.utils.get_total_norm(gradients, norm_type).to(device, torch.float64)
