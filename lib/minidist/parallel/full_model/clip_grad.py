"""Clipping by the norm of the whole gradient, of which each rank may have a shard only.

The norm of a vector is the norm of the norms of its parts. So each rank takes that of its shards,
and one number of each rank is gathered. (Were each rank to clip by its own, every shard would be
scaled differently, and the step would point elsewhere.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import Parameter

from minidist.comm.agreement import agree_on
from minidist.parallel.fsdp.shard import plain
from minidist.parallel.full_model.shards import bare, comms, sharded_gradients, whoami


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients so that their global norm is at most `max_norm`.

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
        ValueError: `max_norm` or `norm_type` is not in its range.
        MismatchError: they differ between ranks; where checks are on.
    """
    inner = bare(module)
    max_norm, norm_type = float(max_norm), float(norm_type)
    facts, problem = {"max_norm": max_norm, "norm_type": norm_type}, None
    if not (max_norm >= 0 and norm_type > 0):
        problem = ValueError(f"expected max_norm >= 0 and norm_type > 0, got {facts}")
    for comm in comms(module):
        agree_on(comm, "clip_grad_norm_", facts, problem)
    if problem:
        raise ValueError(f"{whoami()}clip_grad_norm_: {problem}")

    sharded = list(sharded_gradients(inner))
    elsewhere = {parameter for params in sharded for parameter in params.parameters}
    own = [parameter for parameter in inner.parameters() if parameter not in elsewhere]
    shards = [shard for params in sharded for shard in params.shards]
    device = shards[0].device if shards else None  # a number from the host would be waited for
    norms = [_norm(own, norm_type, device)]
    for comm in {params.comm.group: params.comm for params in sharded}.values():
        mine = [s for params in sharded if params.comm.group is comm.group for s in params.shards]
        norm = _norm(mine, norm_type, device).view(1)
        everyones = norm.new_empty(comm.ranks)
        comm.all_gather(everyones, norm)
        norms.append(torch.linalg.vector_norm(everyones, norm_type))
    every, dtype = [*own, *shards], torch.float32
    for parameter in every:
        if parameter.requires_grad:
            dtype = torch.promote_types(dtype, parameter.dtype.to_real())
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type).to(dtype)
    torch.nn.utils.clip_grads_with_norm_(every, max_norm, total)
    return total


def _norm(
    parameters: Iterable[Parameter], norm_type: float, device: torch.device | None
) -> torch.Tensor:
    """The norm of all their gradients, in float64."""
    with plain():
        found = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
        found = [gradient.as_subclass(torch.Tensor) for gradient in found]
    if not found:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.nn.utils.get_total_norm(found, norm_type).to(device, torch.float64)
