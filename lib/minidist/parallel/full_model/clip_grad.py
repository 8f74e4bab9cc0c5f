"""Clipping by the norm of the whole gradient, of which each rank may have a slice only.

The norm of a vector is the norm of the norms of its parts. So each rank takes that of what it has,
and one number of each rank goes round. (Were each rank to clip by its own, every slice would be
scaled otherwise, and the step would point elsewhere.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.fsdp.shard import plain
from minidist.parallel.full_model.shards import bare, sliced_gradients, whoami


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients so that their global norm is at most `max_norm`.

    As `torch.nn.utils.clip_grad_norm_`, but it takes the module, bare or wrapped in DDP, or with
    units of `fully_shard`; a ZeroOptimizer may hold its parameters. Every rank must call it, after
    backward and before the step.

    Args:
        module: whose gradients; parameters without one are skipped.
        max_norm: the largest norm that is left as it is.
        norm_type: p of the p-norm, above 0; `math.inf` for the largest absolute value.

    Returns:
        The norm before clipping, 0-dimensional, the same bits on all ranks; in the dtype of the
        parameters, float32 at least. If it is infinite or NaN the gradients are scaled all the
        same, as by PyTorch's: NaN makes them all NaN.

    Raises:
        ValueError: of `norm_type`; or gradients of parameters outside FSDP's units, which nobody
            averages, differ between ranks.
    """
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ValueError(f"{whoami()}clip_grad_norm_: norm_type: expected > 0, got {norm_type}")
    inner = bare(module)
    cut = list(sliced_gradients(inner))
    named = {parameter for part in cut for parameter in part.named}
    outside = {name: p for name, p in inner.named_parameters() if p not in named}
    where = cut[0].kept[0].device if cut else None  # a number from the host would be waited for
    norms = [_norm(outside.values(), norm_type, where)]
    for comm in {part.comm.group: part.comm for part in cut}.values():
        mine = [p for part in cut if part.comm.group is comm.group for p in part.kept]
        both = torch.stack([_norm(mine, norm_type, mine[0].device), norms[0].to(mine[0].device)])
        rows = _everyones(both, comm)
        norms.append(torch.linalg.vector_norm(rows[:, 0], norm_type))
        if any(parameter.requires_grad for parameter in outside.values()):
            norms[0] = _same(rows[:, 1], list(outside))
    every = [*outside.values(), *(parameter for part in cut for parameter in part.kept)]
    every_norm = torch.stack([norm.to(norms[-1].device) for norm in norms])
    total: torch.Tensor = torch.linalg.vector_norm(every_norm, norm_type).to(_dtype(every))
    torch.nn.utils.clip_grads_with_norm_(every, max_norm, total)
    return total


def _norm(
    parameters: Iterable[Parameter], norm_type: float, device: torch.device | None = None
) -> torch.Tensor:
    """Of their gradients together, in float64."""
    with plain():
        found = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
        found = [gradient.as_subclass(torch.Tensor) for gradient in found]
    if not found:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.nn.utils.get_total_norm(found, norm_type).to(device, torch.float64)


def _everyones(mine: torch.Tensor, comm: Comm) -> torch.Tensor:
    """The numbers of all ranks, a row for each."""
    rows = mine.new_empty(comm.ranks * len(mine))
    comm.all_gather(rows, mine)
    return rows.view(comm.ranks, len(mine))


def _same(norms: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The first of numbers that ought to be equal on all ranks."""
    if not torch.allclose(norms, norms[0], rtol=1e-5, atol=0, equal_nan=True):
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ValueError(
            f"{whoami()}clip_grad_norm_: the gradients of parameters outside all units ({some}) "
            "differ between ranks, since nobody averages them: fully_shard the root too"
        )
    return norms[0]


def _dtype(parameters: Sequence[Parameter]) -> torch.dtype:
    found = torch.float32
    for parameter in parameters:
        if parameter.requires_grad:
            found = torch.promote_types(found, parameter.dtype.to_real())
    return found
